#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "sidecar/gguf_reader.h"

namespace vecinfer::gguf {
namespace {

class MemorySource final : public ByteSource {
public:
    explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}

    std::uint64_t size() const noexcept override { return bytes_.size(); }

    Status read(std::uint64_t offset, std::span<std::byte> out) const override {
        if (!out.empty()) {
            std::memcpy(out.data(), bytes_.data() + offset, out.size());
        }
        return {};
    }

private:
    std::span<const std::byte> bytes_;
};

Status system_error(ErrorCode code, const std::filesystem::path& path, std::string_view action, int error) {
    return {code, fmt::format("{}: cannot {}: {}", path.string(), action, std::generic_category().message(error))};
}

class FileSource final : public ByteSource {
public:
    FileSource(int descriptor, std::uint64_t size, std::filesystem::path path)
        : descriptor_(descriptor), size_(size), path_(std::move(path)) {}
    FileSource(const FileSource&) = delete;
    FileSource& operator=(const FileSource&) = delete;
    ~FileSource() override { ::close(descriptor_); }

    std::uint64_t size() const noexcept override { return size_; }

    Status read(std::uint64_t offset, std::span<std::byte> out) const override {
        // Headers are thousands of small values: they are served from one chunk, large payloads are read straight.
        if (out.size() >= kChunkBytes) {
            return read_file(offset, out);
        }
        if (offset < chunk_offset_ || offset + out.size() > chunk_offset_ + chunk_.size()) {
            chunk_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, size_ - offset)));
            chunk_offset_ = offset;
            if (Status s = read_file(offset, chunk_); !s.ok()) {
                chunk_.clear();
                return s;
            }
        }
        if (!out.empty()) {
            std::memcpy(out.data(), chunk_.data() + (offset - chunk_offset_), out.size());
        }
        return {};
    }

private:
    static constexpr std::size_t kChunkBytes = 1 << 16;

    Status read_file(std::uint64_t offset, std::span<std::byte> out) const {
        while (!out.empty()) {
            const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got < 0) {
                return system_error(ErrorCode::io_error, path_, "read", errno);
            }
            if (got == 0) {
                return {ErrorCode::io_error, fmt::format("{}: the file became shorter while it was read", path_.string())};
            }
            offset += static_cast<std::uint64_t>(got);
            out = out.subspan(static_cast<std::size_t>(got));
        }
        return {};
    }

    int descriptor_;
    std::uint64_t size_;
    std::filesystem::path path_;
    mutable std::vector<std::byte> chunk_;
    mutable std::uint64_t chunk_offset_ = 0;
};

}  // namespace

std::shared_ptr<const ByteSource> memory_source(std::span<const std::byte> bytes) {
    return std::make_shared<MemorySource>(bytes);
}

Result<std::shared_ptr<const ByteSource>> file_source(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a pipe by mistake must not hang; it has no effect on regular files.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        const int error = errno;
        return system_error(error == ENOENT ? ErrorCode::not_found : ErrorCode::io_error, path, "open", error);
    }
    struct stat info {};
    if (::fstat(descriptor, &info) != 0) {
        const int error = errno;
        ::close(descriptor);
        return system_error(ErrorCode::io_error, path, "inspect", error);
    }
    if (!S_ISREG(info.st_mode)) {
        ::close(descriptor);
        return Status(ErrorCode::invalid_argument, fmt::format("{}: got {}, expected a file", path.string(),
                                                               S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe"));
    }
    return std::shared_ptr<const ByteSource>(
        std::make_shared<FileSource>(descriptor, static_cast<std::uint64_t>(info.st_size), path));
}

}  // namespace vecinfer::gguf
