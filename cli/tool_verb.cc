#include "tool_verb.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>

#include "environment.h"
#include "launch.h"
#include "locate.h"
#include "scheme_option.h"
#include "sidecar_choice.h"

namespace vecinfer::cli {
namespace {

using namespace std::string_view_literals;

struct Options {
    std::string model;
    SchemeOption scheme;
    std::string codebooks;
    std::string tools_dir;
    bool no_plugin = false;
    bool dry_run = false;
    bool chat = false;
};

int report(std::string_view verb, const Status& status) {
    return status.code() == ErrorCode::invalid_argument ? usage_error(verb, status.message()) : fail(status.message());
}

// Only llama-completion knows these; without one it turns itself into a chat for any model with a chat template.
bool asks_for_conversation(const std::vector<std::string>& arguments) {
    return has_option(arguments, std::array{"-cnv"sv, "--conversation"sv, "-no-cnv"sv, "--no-conversation"sv});
}

// The models of this call, checked to be there. Models that llama.cpp downloads itself (-hf and the like) are not among them.
Result<std::vector<std::string>> local_models(const Options& options, const VerbCall& call, const ToolVerb& verb) {
    std::vector<std::string> models = passthrough_models(call.passthrough, verb.many_models);
    if (!options.model.empty() && !models.empty()) {
        return argument_error("-m", fmt::format("{} before `--` and {} after it", options.model, models.front()), "one of them");
    }
    if (!options.model.empty()) {
        models.push_back(options.model);
    }
    const bool elsewhere =
        has_option(call.passthrough, std::array{"-hf"sv, "-hfr"sv, "--hf-repo"sv, "-mu"sv, "--model-url"sv, "-dr"sv,
                                                "--docker-repo"sv, "--models-dir"sv, "--list-devices"sv});
    if (models.empty() && !elsewhere) {
        return Status(ErrorCode::invalid_argument, fmt::format("{} needs a model: -m MODEL", verb.name));
    }
    for (const std::string& model : models) {
        if (const Status status = check_gguf(model, "model"); !status.ok()) {
            return Status(status.code() == ErrorCode::invalid_argument ? ErrorCode::io_error : status.code(), status.message());
        }
    }
    return models;
}

// Sets scheme and codebooks of the request.
Status set_up_cache(const Options& options, const std::optional<Scheme>& scheme, const std::vector<std::string>& models,
                    LaunchRequest& request) {
    std::optional<std::string> codebooks;
    if (!options.codebooks.empty()) {
        codebooks = options.codebooks;
    }
    const bool compressed = !scheme || !scheme->is_f16();
    if (models.size() > 1 && compressed && codebooks != "none") {
        return argument_error("-m", fmt::format("{} models", models.size()),
                              "one, or --codebooks none, as codebooks belong to one model");
    }

    const Result<SidecarChoice> choice = choose_sidecar(models.empty() ? "" : models.front(), scheme, codebooks);
    if (!choice.ok()) {
        return choice.status();
    }
    request.scheme = to_string(choice->scheme);
    request.codebooks = choice->path;
    if (const Status status = check_passthrough(request); !status.ok()) {
        return status;
    }
    note(choice->explanation);
    return {};
}

}  // namespace

int run_tool_verb(const ToolVerb& verb, const VerbCall& call) {
    Options options;
    CLI::App app{std::string(verb.summary), fmt::format("vecinfer {}", verb.name)};
    app.add_option("-m,--model", options.model, "GGUF model")->type_name("MODEL");
    CLI::Option* scheme = options.scheme.add_to(
        app, fmt::format("how the cache is stored, see `vecinfer --help` (default {}; f16: not compressed)", kDefaultScheme));
    CLI::Option* codebooks = add_codebooks_option(app, options.codebooks);
    app.add_flag("--no-plugin", options.no_plugin, "the plain stock tool, as a baseline")->excludes(scheme)->excludes(codebooks);
    app.add_option("--tools-dir", options.tools_dir, "folder of the llama.cpp tools (default: VECINFER_TOOLS, then PATH)")
        ->type_name("DIR");
    app.add_flag("--dry-run", options.dry_run, "print the command line and environment instead of running it");
    if (!verb.chat_tool.empty()) {
        app.add_flag("--chat", options.chat, fmt::format("chat in the terminal ({})", verb.chat_tool));
    }
    set_up_help(app, "-m MODEL [OPTIONS] [-- TOOL ARGUMENTS]", verb.examples);

    int exit_code = kExitOk;
    if (parse_args(app, verb.name, call, verb.tool, exit_code) == Parsed::finished) {
        return exit_code;
    }
    Result<std::optional<Scheme>> scheme_asked = std::optional<Scheme>();
    if (!options.no_plugin) {
        scheme_asked = options.scheme.asked();
        if (options.codebooks.empty()) {
            options.codebooks = environment_value("VECINFER_CODEBOOKS").value_or("");
        }
    }
    if (!scheme_asked.ok()) {
        return scheme_error(scheme_asked.status().message());
    }
    const EnvironmentUse use = {.plugin = !options.no_plugin,
                                .tools = options.tools_dir.empty(),
                                .codebooks = !options.no_plugin && codebooks->count() == 0};
    if (const Status status = check_environment(use); !status.ok()) {
        return fail(status.message());
    }
    const std::string_view tool = options.chat ? verb.chat_tool : verb.tool;
    LaunchRequest request{.model = options.model,
                          .flash_attention = std::string(verb.flash_attention),
                          .passthrough = call.passthrough,
                          .value_lists = verb.many_models};
    const Result<std::vector<std::string>> models = local_models(options, call, verb);
    if (!models.ok()) {
        return report(verb.name, models.status());
    }
    const Result<std::filesystem::path> program = find_tool(tool, options.tools_dir);
    if (!program.ok()) {
        return fail(program.status().message());
    }
    request.program = program.value();
    if (tool == "llama-completion" && !asks_for_conversation(call.passthrough)) {
        request.defaults.push_back("-no-cnv");
    }
    if (!options.no_plugin) {
        const Result<std::filesystem::path> plugin = find_plugin();
        if (!plugin.ok()) {
            return fail(plugin.status().message());
        }
        request.plugin = plugin.value();
        if (const Status status = set_up_cache(options, scheme_asked.value(), models.value(), request); !status.ok()) {
            return report(verb.name, status);
        }
    }
    for (const std::vector<std::string>& lines : {passthrough_warnings(request), passthrough_notes(request)}) {
        for (const std::string& line : lines) {
            note(line);
        }
    }

    const Launch launch = build_launch(request);
    if (options.dry_run) {
        fmt::print("{}\n", shell_line(launch));
        return kExitOk;
    }
    return fail(hand_over(launch).message());
}

}  // namespace vecinfer::cli
