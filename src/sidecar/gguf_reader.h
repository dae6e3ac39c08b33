// Reader for the GGUF container, versions 2 and 3, little-endian. It trusts no byte: every count and offset is checked against
// what is left of the input before it is used, and payloads (strings, arrays, tensors) stay in the input until they are asked
// for, so a 50 GB model is opened by reading its header only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vecinfer/status.h"

namespace vecinfer::gguf {

enum class ValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

/// Tensor types of ggml that are read or written here, by their number in the file.
inline constexpr std::uint32_t kTensorF32 = 0;
inline constexpr std::uint32_t kTensorF16 = 1;
inline constexpr std::uint32_t kTensorI8 = 24;

/// Bytes per element of a plain tensor type; 0 for block-quantized or unknown types.
std::size_t tensor_element_size(std::uint32_t type) noexcept;

/// Random access to bytes that may lie in memory or in a file.
class ByteSource {
public:
    virtual ~ByteSource() = default;
    virtual std::uint64_t size() const noexcept = 0;
    /// Reads out.size() bytes at `offset`; the caller has checked that they lie inside size().
    virtual Status read(std::uint64_t offset, std::span<std::byte> out) const = 0;
};

/// `bytes` must outlive the source.
std::shared_ptr<const ByteSource> memory_source(std::span<const std::byte> bytes);
/// Regular files only. Reads ahead in small chunks; not thread-safe.
Result<std::shared_ptr<const ByteSource>> file_source(const std::filesystem::path& path);

struct Value {
    ValueType type = ValueType::u8;
    ValueType element = ValueType::u8;  // of an array
    std::uint64_t count = 1;            // elements of an array, bytes of a string
    std::uint64_t offset = 0;           // where the payload starts
};

struct Tensor {
    std::vector<std::uint64_t> shape;  // fastest dimension first
    std::uint32_t type = 0;
    std::uint64_t elements = 0;
    std::uint64_t offset = 0;  // from the start of the data section
};

class File {
public:
    /// Errors: corrupt_data for anything that is not a GGUF file, unsupported for versions it does not know.
    static Result<File> open(std::shared_ptr<const ByteSource> source);

    const std::map<std::string, Value, std::less<>>& values() const noexcept { return values_; }
    const std::map<std::string, Tensor, std::less<>>& tensors() const noexcept { return tensors_; }
    const Value* find(std::string_view key) const;
    const Tensor* find_tensor(std::string_view name) const;

    // Payloads. Errors (corrupt_data) name the key if it is missing or has another type; every integer type is taken if the
    // number fits.
    Result<std::string> string(std::string_view key) const;
    Result<std::int64_t> integer(std::string_view key) const;
    Result<std::uint64_t> unsigned_integer(std::string_view key) const;
    /// Array of integers of any type.
    Result<std::vector<std::uint64_t>> unsigned_array(std::string_view key) const;

    std::uint32_t alignment() const noexcept { return alignment_; }
    std::uint64_t data_offset() const noexcept { return data_offset_; }
    std::uint64_t data_size() const noexcept { return source_->size() - data_offset_; }
    /// The tensor's bytes; an error if its type is not plain or it does not lie inside the file.
    Result<std::vector<std::byte>> tensor_bytes(std::string_view name) const;
    /// hash64 of the whole file, with the eight bytes of the u64 `key` taken as zeros: the hash of a file that carries its own
    /// hash.
    Result<std::uint64_t> hash_without(std::string_view key) const;

private:
    Result<std::vector<std::byte>> bytes(std::uint64_t offset, std::uint64_t count) const;

    std::shared_ptr<const ByteSource> source_;
    std::map<std::string, Value, std::less<>> values_;
    std::map<std::string, Tensor, std::less<>> tensors_;
    std::uint32_t alignment_ = 32;
    std::uint64_t data_offset_ = 0;
};

}  // namespace vecinfer::gguf
