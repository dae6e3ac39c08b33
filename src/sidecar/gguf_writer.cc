#include "sidecar/gguf_writer.h"

#include <bit>
#include <cstring>
#include <string_view>

#include "sidecar/gguf_reader.h"
#include "vecinfer/sidecar.h"

namespace vecinfer::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written without byte swapping");

constexpr std::uint32_t kVersion = 3;

void put_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
    const std::size_t at = out.size();
    out.resize(at + bytes.size());
    if (!bytes.empty()) {
        std::memcpy(out.data() + at, bytes.data(), bytes.size());
    }
}

template <class T>
void put(std::vector<std::byte>& out, T value) {
    put_bytes(out, std::as_bytes(std::span(&value, 1)));
}

void put_string(std::vector<std::byte>& out, std::string_view text) {
    put(out, static_cast<std::uint64_t>(text.size()));
    put_bytes(out, std::as_bytes(std::span(text)));
}

void put_key(std::vector<std::byte>& out, std::string_view key, ValueType type) {
    put_string(out, key);
    put(out, static_cast<std::uint32_t>(type));
}

template <class T>
void put_array(std::vector<std::byte>& out, std::string_view key, ValueType element, std::span<const T> values) {
    put_key(out, key, ValueType::array);
    put(out, static_cast<std::uint32_t>(element));
    put(out, static_cast<std::uint64_t>(values.size()));
    put_bytes(out, std::as_bytes(values));
}

void pad(std::vector<std::byte>& out, std::size_t alignment) {
    out.resize((out.size() + alignment - 1) / alignment * alignment);
}

}  // namespace

Writer::Writer(std::uint32_t alignment) : alignment_(alignment) {}

void Writer::add_string(std::string_view key, std::string_view value) {
    put_key(values_, key, ValueType::string);
    put_string(values_, value);
    ++num_values_;
}

void Writer::add_u32(std::string_view key, std::uint32_t value) {
    put_key(values_, key, ValueType::u32);
    put(values_, value);
    ++num_values_;
}

void Writer::add_i64(std::string_view key, std::int64_t value) {
    put_key(values_, key, ValueType::i64);
    put(values_, value);
    ++num_values_;
}

void Writer::add_u64(std::string_view key, std::uint64_t value) {
    put_key(values_, key, ValueType::u64);
    put(values_, value);
    ++num_values_;
}

void Writer::add_u32_array(std::string_view key, std::span<const std::uint32_t> values) {
    put_array(values_, key, ValueType::u32, values);
    ++num_values_;
}

void Writer::add_u64_array(std::string_view key, std::span<const std::uint64_t> values) {
    put_array(values_, key, ValueType::u64, values);
    ++num_values_;
}

void Writer::add_tensor(std::string_view name, std::span<const std::uint64_t> shape, std::uint32_t type,
                        std::span<const std::byte> bytes) {
    put_string(tensors_, name);
    put(tensors_, static_cast<std::uint32_t>(shape.size()));
    for (const std::uint64_t extent : shape) {
        put(tensors_, extent);
    }
    put(tensors_, type);
    put(tensors_, static_cast<std::uint64_t>(data_.size()));
    put_bytes(data_, bytes);
    pad(data_, alignment_);
    ++num_tensors_;
}

std::vector<std::byte> Writer::finish(std::string_view hash_key) {
    add_u64(hash_key, 0);
    std::vector<std::byte> out;
    put_bytes(out, std::as_bytes(std::span("GGUF", 4)));
    put(out, kVersion);
    put(out, num_tensors_);
    put(out, num_values_);
    put_bytes(out, values_);
    const std::size_t hash_at = out.size() - sizeof(std::uint64_t);
    put_bytes(out, tensors_);
    pad(out, alignment_);
    put_bytes(out, data_);
    const std::uint64_t hash = hash64(out);
    std::memcpy(out.data() + hash_at, &hash, sizeof(hash));
    return out;
}

}  // namespace vecinfer::gguf
