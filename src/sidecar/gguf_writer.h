// Writer for the GGUF container, version 3: metadata and tensors come out in the order in which they are added, so equal content
// gives equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace vecinfer::gguf {

class Writer {
public:
    explicit Writer(std::uint32_t alignment);  // a power of two

    void add_string(std::string_view key, std::string_view value);
    void add_u32(std::string_view key, std::uint32_t value);
    void add_i64(std::string_view key, std::int64_t value);
    void add_u64(std::string_view key, std::uint64_t value);
    void add_u32_array(std::string_view key, std::span<const std::uint32_t> values);
    void add_u64_array(std::string_view key, std::span<const std::uint64_t> values);
    /// `shape`: fastest dimension first; `bytes`: the data, little-endian.
    void add_tensor(std::string_view name, std::span<const std::uint64_t> shape, std::uint32_t type,
                    std::span<const std::byte> bytes);

    /// The file, with one more u64 value `hash_key`: hash64 of all its bytes, that value's own eight taken as zeros.
    std::vector<std::byte> finish(std::string_view hash_key);

private:
    std::uint32_t alignment_;
    std::uint64_t num_values_ = 0;
    std::uint64_t num_tensors_ = 0;
    std::vector<std::byte> values_;   // encoded key-value pairs
    std::vector<std::byte> tensors_;  // encoded tensor infos
    std::vector<std::byte> data_;
};

}  // namespace vecinfer::gguf
