#include "compare/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "vecinfer/sidecar.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kFormat = 1;

Status failed(std::string_view what, const fs::path& path) {
    return Status(ErrorCode::io_error, fmt::format("{} {}: {}", what, path.string(), std::strerror(errno)));
}

}  // namespace

Status write_file(const fs::path& name, std::string_view content) {
    const fs::path path = behind_links(name);
    const fs::path temporary = path.string() + fmt::format(".tmp{}", getpid());
    const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) {
        return failed("cannot write", temporary);
    }
    Status status;
    while (status.ok() && !content.empty()) {
        const ssize_t written = write(file, content.data(), content.size());
        if (written > 0) {
            content.remove_prefix(static_cast<std::size_t>(written));
        } else if (errno != EINTR) {
            status = failed("cannot write", temporary);
        }
    }
    if (close(file) != 0 && status.ok()) {
        status = failed("cannot write", temporary);
    }
    if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
        status = failed("cannot write", path);
    }
    if (!status.ok()) {
        unlink(temporary.c_str());
    }
    return status;
}

Result<std::string> read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file.good() && !file.eof()) {
        return Status(ErrorCode::io_error, fmt::format("cannot read {}", path.string()));
    }
    return text;
}

std::string hash_text(std::string_view text) {
    return fmt::format("{:016x}", hash64(std::as_bytes(std::span(text))));
}

Result<std::string> hash_file(const fs::path& path) {
    const Result<std::string> text = read_file(path);
    if (!text.ok()) {
        return text.status();
    }
    return hash_text(text.value());
}

std::string stamp_of(const fs::path& path) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    const auto time = fs::last_write_time(path, error).time_since_epoch().count();
    return fmt::format("{} {} {}", path.filename().string(), error ? 0 : size, error ? 0 : time);
}

std::string file_name_of(std::string_view name) {
    std::string file(name);
    for (char& c : file) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
        c = plain ? c : '_';
    }
    return file.substr(0, 80);
}

Result<ResultStore> ResultStore::open(const fs::path& folder) {
    ResultStore store(folder);
    for (const fs::path& part : {folder, folder / "results", folder / "logs"}) {
        Result<OutputFolder> made = OutputFolder::open(part);
        if (!made.ok()) {
            return made.status();
        }
        store.made_.push_back(std::move(made).value());
    }
    store.lock_ = ::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (store.lock_ < 0) {
        const Status status = failed("cannot write", folder / ".lock");
        return Status(status.code(), "out: " + status.message());
    }
    if (flock(store.lock_, LOCK_EX | LOCK_NB) != 0) {
        return Status(ErrorCode::io_error, fmt::format("out: another comparison is at work in {}", folder.string()));
    }
    return store;
}

ResultStore::ResultStore(ResultStore&& other) noexcept
    : folder_(std::move(other.folder_)), made_(std::move(other.made_)), lock_(other.lock_) {
    other.lock_ = -1;
}

ResultStore::~ResultStore() {
    while (made_.size() > 1) {
        made_.pop_back();
    }
    if (lock_ >= 0) {
        std::error_code error;
        if (!made_.empty() && made_.front().is_new() && !fs::exists(folder_ / "results", error) &&
            !fs::exists(folder_ / "logs", error)) {
            unlink((folder_ / ".lock").c_str());
        }
        close(lock_);
    }
}

fs::path ResultStore::file(const std::string& name, const Json& inputs) const {
    return folder_ / "results" / fmt::format("{}.{}.json", file_name_of(name), hash_text(inputs.dump()));
}

std::optional<Json> ResultStore::find(const std::string& name, const Json& inputs) const {
    const Result<std::string> text = read_file(file(name, inputs));
    if (!text.ok()) {
        return std::nullopt;
    }
    // A file that somebody has cut or changed counts as not there: it is measured again.
    const Json json = Json::parse(text.value(), nullptr, false);
    if (!json.is_object() || json.value("format", 0) != kFormat || !json.contains("result") ||
        json.value("inputs", Json()) != inputs) {
        return std::nullopt;
    }
    return json["result"];
}

Status ResultStore::save(const std::string& name, const Json& inputs, const Json& result) const {
    const Json json = {{"format", kFormat}, {"result", result}, {"inputs", inputs}};
    return write_file(file(name, inputs), json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace vecinfer::cli
