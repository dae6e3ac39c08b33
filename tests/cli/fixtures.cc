#include "cli/fixtures.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>

namespace vecinfer::test {
namespace fs = std::filesystem;
namespace {

// Just enough of GGUF v3 to write a model's metadata and its norm weights.
class GgufWriter {
public:
    template <class T>
    void put(T value) {
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void put_string(const std::string& text) {
        put<std::uint64_t>(text.size());
        bytes_ += text;
    }
    void put_key(const std::string& key, const std::string& value) {
        put_string(key);
        put<std::uint32_t>(8);
        put_string(value);
    }
    void put_key(const std::string& key, std::uint32_t value) {
        put_string(key);
        put<std::uint32_t>(4);
        put(value);
    }
    void align() { bytes_.resize((bytes_.size() + 31) / 32 * 32, '\0'); }
    void append(const std::string& more) { bytes_ += more; }
    const std::string& bytes() const { return bytes_; }

private:
    std::string bytes_;
};

std::string read_all(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

Codebook codebook(const CodecSpec& spec, int salt) {
    Codebook book{.sub_dim = spec.sub_dim, .code_bits = spec.code_bits, .scale = 0.01F};
    book.centroids.resize(static_cast<std::size_t>(book.num_centroids()) * static_cast<std::size_t>(spec.sub_dim));
    for (std::size_t i = 0; i < book.centroids.size(); ++i) {
        book.centroids[i] = static_cast<std::int8_t>(static_cast<int>((i * 37 + static_cast<std::size_t>(salt)) % 255) - 127);
    }
    return book;
}

std::vector<float> scaled_identities(int num_heads, int head_dim, float scale) {
    const auto dim = static_cast<std::size_t>(head_dim);
    std::vector<float> matrices(static_cast<std::size_t>(num_heads) * dim * dim, 0.0F);
    for (std::size_t row = 0; row < static_cast<std::size_t>(num_heads) * dim; ++row) {
        matrices[row * dim + row % dim] = scale;
    }
    return matrices;
}

}  // namespace

void CliTest::SetUp() {
    std::string name = (fs::temp_directory_path() / "vecinfer cli XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = fs::canonical(name);
    fs::create_directory(path("tools"));
    fs::create_directory(path("home"));
    write("plugin.so", std::string("\x7f") + "ELF VECINFER_PLUGIN_BUILT_FOR=0.9.9 (abc1234)" + '\0' + " more");
}

void CliTest::TearDown() {
    std::error_code error;
    fs::remove_all(folder_, error);
}

void CliTest::write(const std::string& name, const std::string& content) const {
    std::ofstream file(path(name), std::ios::binary);
    file << content;
    ASSERT_TRUE(file.flush()) << name;
}

void CliTest::write_model(const std::string& name, const TinyModel& model) const {
    const auto embedding = static_cast<std::uint32_t>(model.num_heads * model.head_dim);
    GgufWriter file;
    file.append("GGUF");
    file.put<std::uint32_t>(3);
    file.put<std::uint64_t>(static_cast<std::uint64_t>(model.num_layers));
    file.put<std::uint64_t>(7);
    file.put_key("general.architecture", model.architecture);
    file.put_key("general.name", model.name);
    file.put_key(model.architecture + ".block_count", static_cast<std::uint32_t>(model.num_layers));
    file.put_key(model.architecture + ".context_length", std::uint32_t{2048});
    file.put_key(model.architecture + ".embedding_length", embedding);
    file.put_key(model.architecture + ".attention.head_count", static_cast<std::uint32_t>(model.num_heads));
    file.put_key(model.architecture + ".attention.head_count_kv", static_cast<std::uint32_t>(model.num_kv_heads));
    for (int layer = 0; layer < model.num_layers; ++layer) {
        file.put_string("blk." + std::to_string(layer) + ".attn_norm.weight");
        file.put<std::uint32_t>(1);
        file.put<std::uint64_t>(embedding);
        file.put<std::uint32_t>(0);  // F32
        file.put<std::uint64_t>(static_cast<std::uint64_t>(layer) * embedding * sizeof(float));
    }
    file.align();
    for (int layer = 0; layer < model.num_layers; ++layer) {
        for (std::uint32_t i = 0; i < embedding; ++i) {
            file.put(model.weight + static_cast<float>(layer));
        }
    }
    write(name, file.bytes());
}

Sidecar CliTest::sidecar(const std::string& scheme, const std::string& model) const {
    const Result<ModelInfo> info = read_model_info(path(model));
    EXPECT_TRUE(info.ok()) << info.status().message();
    const Result<Scheme> parsed = parse_scheme(scheme);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    const Result<Scheme> resolved = resolve(parsed.value(), true);
    EXPECT_TRUE(resolved.ok()) << resolved.status().message();
    Sidecar result{.scheme = resolved.value(),
                   .model = info->identity,
                   .facts = {.text_hash = 0x1234, .tokens = 4096, .seed = 7, .tool = "vecinfer test"}};
    for (const LayerShape& shape : info->layers) {
        LayerCalibration layer{.shape = shape};
        if (resolved->key_transform.smooth) {
            layer.smooth_factors.assign(static_cast<std::size_t>(shape.num_kv_heads * shape.head_dim_k), 1.5F);
        }
        if (resolved->key_transform.center) {
            layer.key_center.assign(static_cast<std::size_t>(shape.num_kv_heads * shape.head_dim_k), -0.25F);
        }
        if (resolved->value_transform.center) {
            layer.value_center.assign(static_cast<std::size_t>(shape.num_kv_heads * shape.head_dim_v), 0.75F);
        }
        if (resolved->key_transform.full) {
            layer.key_matrix = scaled_identities(shape.num_kv_heads, shape.head_dim_k, 2.0F);
        }
        if (resolved->value_transform.full) {
            layer.value_matrix = scaled_identities(shape.num_kv_heads, shape.head_dim_v, 0.5F);
        }
        if (shapes_keys(resolved.value())) {
            layer.key_shaping.assign(static_cast<std::size_t>(shape.num_kv_heads * shape.head_dim_k), 0.5F);
        }
        const Scheme own = scheme_of_layer(resolved.value(), shape.layer);
        const int books = resolved->scope == Scope::head ? shape.num_kv_heads : 1;
        for (int head = 0; head < books; ++head) {
            layer.key_codebooks.push_back(codebook(own.key, head));
            layer.value_codebooks.push_back(codebook(own.value, head + 11));
        }
        result.layers.push_back(layer);
    }
    return result;
}

void CliTest::write_sidecar(const std::string& name, const std::string& scheme, const std::string& model) const {
    const Status saved = save_sidecar(sidecar(scheme, model), path(name));
    ASSERT_TRUE(saved.ok()) << saved.message();
}

void CliTest::write_tool(const std::string& name, int exit_code) const {
    write("tools/" + name, R"sh(#!/bin/sh
if [ "$1" = --version ]; then echo "version: 1.2.3 (fake)"; exit 0; fi
for argument in "$@"; do printf 'arg=%s\n' "$argument"; done
printf 'path=%s\n' "${GGML_BACKEND_PATH-unset}"
printf 'scheme=%s\n' "${VECINFER_SCHEME-unset}"
printf 'codebooks=%s\n' "${VECINFER_CODEBOOKS-unset}"
exit )sh" + std::to_string(exit_code) +
                               "\n");
    fs::permissions(path("tools/" + name), fs::perms::owner_all);
}

CommandResult CliTest::vecinfer(const std::vector<std::string>& arguments,
                                const std::map<std::string, std::string>& environment) const {
    std::vector<std::string> argv = {VECINFER_COMMAND};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    std::map<std::string, std::string> all = {{"VECINFER_TOOLS", path("tools").string()},
                                              {"VECINFER_PLUGIN", path("plugin.so").string()}};
    for (const auto& [name, value] : environment) {
        all[name] = value;
    }
    return run(argv, all);
}

CommandResult CliTest::run(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment) const {
    const std::string out = path("home/stdout").string();
    const std::string err = path("home/stderr").string();
    std::vector<std::string> variables;
    if (environment.count("PATH") == 0) {
        variables.emplace_back("PATH=/usr/bin:/bin");
    }
    for (const auto& [name, value] : environment) {
        variables.push_back(name + "=" + value);
    }
    const auto pointers = [](const std::vector<std::string>& words) {
        std::vector<char*> list;
        for (const std::string& word : words) {
            list.push_back(const_cast<char*>(word.c_str()));
        }
        list.push_back(nullptr);
        return list;
    };
    const std::vector<char*> arguments = pointers(argv);
    const std::vector<char*> env = pointers(variables);
    const pid_t child = fork();
    if (child == 0) {
        const int flags = O_WRONLY | O_CREAT | O_TRUNC;
        dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
        dup2(open(out.c_str(), flags, 0600), STDOUT_FILENO);
        dup2(open(err.c_str(), flags, 0600), STDERR_FILENO);
        if (chdir(folder_.c_str()) == 0) {
            execve(arguments[0], arguments.data(), env.data());
        }
        _exit(126);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read_all(out), read_all(err)};
}

std::vector<std::string> lines_after(const std::string& text, const std::string& prefix) {
    std::vector<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(prefix)) {
            found.push_back(line.substr(prefix.size()));
        }
    }
    return found;
}

}  // namespace vecinfer::test
