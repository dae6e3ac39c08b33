#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "sidecar/guard.h"
#include "sidecar/parse_sidecar.h"

namespace vecinfer {
namespace {

Status write_error(const std::filesystem::path& path, std::string_view action, int error) {
    return {ErrorCode::io_error, fmt::format("{}: cannot {}: {}", path.string(), action, std::generic_category().message(error))};
}

/// A file under a temporary name beside its destination; removed again unless it was committed.
class TemporaryFile {
public:
    explicit TemporaryFile(const std::filesystem::path& destination) : destination_(destination) {
        static std::atomic<unsigned> counter{0};
        path_ = destination;
        path_ += fmt::format(".{}-{}.tmp", ::getpid(), counter.fetch_add(1));
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    ~TemporaryFile() {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
        if (created_) {
            ::unlink(path_.c_str());
        }
    }

    Status write(std::span<const std::byte> bytes) {
        descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor_ < 0) {
            return write_error(destination_, "create it", errno);
        }
        created_ = true;
        while (!bytes.empty()) {
            const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
            if (written < 0 && errno == EINTR) {
                continue;
            }
            if (written <= 0) {
                return write_error(destination_, "write", written == 0 ? EIO : errno);
            }
            bytes = bytes.subspan(static_cast<std::size_t>(written));
        }
        return {};
    }

    Status commit() {
        if (::fsync(descriptor_) != 0) {
            return write_error(destination_, "write", errno);
        }
        // Some file systems report a full disk only here.
        const int closed = ::close(descriptor_);
        descriptor_ = -1;
        if (closed != 0) {
            return write_error(destination_, "write", errno);
        }
        if (::rename(path_.c_str(), destination_.c_str()) != 0) {
            return write_error(destination_, "replace it", errno);
        }
        created_ = false;
        return {};
    }

private:
    std::filesystem::path destination_;
    std::filesystem::path path_;
    int descriptor_ = -1;
    bool created_ = false;
};

/// Makes the rename durable. Best effort: the file itself is complete either way.
void sync_folder(const std::filesystem::path& file) {
    const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
    if (const int descriptor = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC); descriptor >= 0) {
        ::fsync(descriptor);
        ::close(descriptor);
    }
}

}  // namespace

Result<Sidecar> load_sidecar(const std::filesystem::path& path) {
    return guarded("sidecar", [&]() -> Result<Sidecar> {
        Result<std::shared_ptr<const gguf::ByteSource>> source = gguf::file_source(path);
        if (!source.ok()) {
            return source.status();
        }
        Result<Sidecar> sidecar = parse_sidecar_source(std::move(source.value()));
        if (!sidecar.ok()) {
            return with_prefix(path.string(), sidecar.status());
        }
        return sidecar;
    });
}

Status save_sidecar(const Sidecar& sidecar, const std::filesystem::path& path) {
    return guarded("sidecar", [&]() -> Status {
        const Result<std::vector<std::byte>> bytes = serialize_sidecar(sidecar);
        if (!bytes.ok()) {
            return bytes.status();
        }
        TemporaryFile file(path);
        if (Status s = file.write(bytes.value()); !s.ok()) {
            return s;
        }
        if (Status s = file.commit(); !s.ok()) {
            return s;
        }
        sync_folder(path);
        return {};
    });
}

}  // namespace vecinfer
