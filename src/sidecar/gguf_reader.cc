#include "sidecar/gguf_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "fnv.h"

namespace vecinfer::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF payloads are read without byte swapping");

constexpr std::uint32_t kMagic = 0x46554747;     // "GGUF"
constexpr std::uint64_t kMaxNameBytes = 65535;   // limit of the format for keys
constexpr std::uint64_t kMaxEntries = 1u << 20;  // far above any real file; bounds the maps below
constexpr std::uint32_t kMaxDimensions = 4;      // as in ggml
constexpr std::uint32_t kMaxAlignment = 1u << 20;
constexpr int kMaxNesting = 4;  // arrays of arrays

Status corrupt(std::string message) {
    return {ErrorCode::corrupt_data, "gguf: " + std::move(message)};
}

/// Bytes of one scalar; 0 for strings and arrays.
std::uint64_t scalar_size(ValueType type) noexcept {
    switch (type) {
        case ValueType::u8:
        case ValueType::i8:
        case ValueType::boolean: return 1;
        case ValueType::u16:
        case ValueType::i16: return 2;
        case ValueType::u32:
        case ValueType::i32:
        case ValueType::f32: return 4;
        case ValueType::u64:
        case ValueType::i64:
        case ValueType::f64: return 8;
        case ValueType::string:
        case ValueType::array: return 0;
    }
    return 0;
}

/// Walks the header. Invariant: position_ <= size.
class Cursor {
public:
    explicit Cursor(const ByteSource& source) : source_(source), size_(source.size()) {}

    std::uint64_t position() const noexcept { return position_; }
    std::uint64_t remaining() const noexcept { return size_ - position_; }

    Status skip(std::uint64_t count, std::string_view what) {
        if (count > remaining()) {
            return corrupt(fmt::format("{} at byte {} needs {} bytes, {} are left", what, position_, count, remaining()));
        }
        position_ += count;
        return {};
    }

    template <class T>
    Status read(T& out, std::string_view what) {
        const std::uint64_t at = position_;
        if (Status s = skip(sizeof(T), what); !s.ok()) {
            return s;
        }
        return source_.read(at, std::as_writable_bytes(std::span(&out, 1)));
    }

    Status read_type(ValueType& out) {
        std::uint32_t raw = 0;
        const std::uint64_t at = position_;
        if (Status s = read(raw, "value type"); !s.ok()) {
            return s;
        }
        if (raw > static_cast<std::uint32_t>(ValueType::f64)) {
            return corrupt(fmt::format("value type at byte {}: got {}, expected 0 to 12", at, raw));
        }
        out = static_cast<ValueType>(raw);
        return {};
    }

    Status read_name(std::string& out, std::string_view what) {
        std::uint64_t length = 0;
        if (Status s = read(length, what); !s.ok()) {
            return s;
        }
        if (length > kMaxNameBytes) {
            return corrupt(
                fmt::format("{} at byte {}: got {} bytes, expected at most {}", what, position_, length, kMaxNameBytes));
        }
        const std::uint64_t at = position_;
        if (Status s = skip(length, what); !s.ok()) {
            return s;
        }
        out.resize(static_cast<std::size_t>(length));
        return source_.read(at, std::as_writable_bytes(std::span(out)));
    }

    /// Steps over one payload; on return value.offset and value.count tell where it was.
    Status skip_payload(Value& value, int depth) {
        if (value.type == ValueType::string) {
            if (Status s = read(value.count, "string"); !s.ok()) {
                return s;
            }
            value.offset = position_;
            return skip(value.count, "string");
        }
        if (value.type != ValueType::array) {
            value.offset = position_;
            return skip(scalar_size(value.type), "value");
        }
        if (depth >= kMaxNesting) {
            return corrupt(fmt::format("arrays at byte {} are nested more than {} deep", position_, kMaxNesting));
        }
        if (Status s = read_type(value.element); !s.ok()) {
            return s;
        }
        if (Status s = read(value.count, "array"); !s.ok()) {
            return s;
        }
        value.offset = position_;
        if (const std::uint64_t size = scalar_size(value.element); size != 0) {
            if (value.count > remaining() / size) {
                return corrupt(fmt::format("array at byte {} has {} elements, more than the file holds", position_, value.count));
            }
            return skip(value.count * size, "array");
        }
        // A string takes at least 8 bytes and an array 12, so the loop ends with the file.
        for (std::uint64_t i = 0; i < value.count; ++i) {
            Value element{.type = value.element};
            if (Status s = skip_payload(element, depth + 1); !s.ok()) {
                return s;
            }
        }
        return {};
    }

private:
    const ByteSource& source_;
    std::uint64_t size_;
    std::uint64_t position_ = 0;
};

struct Header {
    std::uint64_t num_tensors = 0;
    std::uint64_t num_values = 0;
};

Status read_header(Cursor& cursor, Header& header) {
    std::uint32_t magic = 0;
    std::uint32_t version = 0;
    if (cursor.remaining() < sizeof(magic) + sizeof(version)) {
        return corrupt(fmt::format("not a GGUF file: it has {} bytes", cursor.remaining()));
    }
    if (Status s = cursor.read(magic, "magic"); !s.ok()) {
        return s;
    }
    if (magic != kMagic) {
        return corrupt(fmt::format("not a GGUF file: it starts with bytes {:02x} {:02x} {:02x} {:02x}, expected \"GGUF\"",
                                   magic & 0xff, magic >> 8 & 0xff, magic >> 16 & 0xff, magic >> 24));
    }
    if (Status s = cursor.read(version, "version"); !s.ok()) {
        return s;
    }
    if (version != 2 && version != 3) {
        const bool swapped = version != 0 && (version & 0xffff) == 0;
        return {ErrorCode::unsupported, swapped ? std::string("gguf: the file is big-endian, expected little-endian")
                                                : fmt::format("gguf: container version: got {}, expected 2 or 3", version)};
    }
    if (Status s = cursor.read(header.num_tensors, "number of tensors"); !s.ok()) {
        return s;
    }
    if (Status s = cursor.read(header.num_values, "number of values"); !s.ok()) {
        return s;
    }
    if (header.num_tensors > kMaxEntries || header.num_values > kMaxEntries) {
        return corrupt(fmt::format("{} tensors and {} values, expected at most {} of each", header.num_tensors, header.num_values,
                                   kMaxEntries));
    }
    return {};
}

Status read_tensor_info(Cursor& cursor, Tensor& tensor) {
    std::uint32_t dimensions = 0;
    if (Status s = cursor.read(dimensions, "tensor dimensions"); !s.ok()) {
        return s;
    }
    if (dimensions > kMaxDimensions) {
        return corrupt(fmt::format("tensor at byte {}: got {} dimensions, expected at most {}", cursor.position(), dimensions,
                                   kMaxDimensions));
    }
    tensor.elements = 1;
    tensor.shape.resize(dimensions);
    for (std::uint64_t& extent : tensor.shape) {
        if (Status s = cursor.read(extent, "tensor shape"); !s.ok()) {
            return s;
        }
        if (__builtin_mul_overflow(tensor.elements, extent, &tensor.elements)) {
            return corrupt(fmt::format("tensor at byte {}: its number of elements does not fit 64 bits", cursor.position()));
        }
    }
    if (Status s = cursor.read(tensor.type, "tensor type"); !s.ok()) {
        return s;
    }
    return cursor.read(tensor.offset, "tensor offset");
}

bool is_integer(ValueType type) noexcept {
    return scalar_size(type) != 0 && type != ValueType::f32 && type != ValueType::f64 && type != ValueType::boolean;
}

bool is_signed(ValueType type) noexcept {
    return type == ValueType::i8 || type == ValueType::i16 || type == ValueType::i32 || type == ValueType::i64;
}

/// Little-endian integer of `size` bytes, sign-extended if asked.
std::uint64_t load_integer(const std::byte* bytes, std::size_t size, bool sign) noexcept {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes, size);
    if (sign && size < 8 && (value >> (8 * size - 1) & 1)) {
        value |= ~std::uint64_t{0} << (8 * size);
    }
    return value;
}

}  // namespace

std::size_t tensor_element_size(std::uint32_t type) noexcept {
    switch (type) {
        case kTensorF32: return 4;
        case kTensorF16: return 2;
        case kTensorI8: return 1;
        case 25: return 2;  // i16
        case 26: return 4;  // i32
        case 27: return 8;  // i64
        case 28: return 8;  // f64
        case 30: return 2;  // bf16
        default: return 0;
    }
}

Result<File> File::open(std::shared_ptr<const ByteSource> source) {
    File file;
    file.source_ = std::move(source);
    Cursor cursor(*file.source_);
    Header header;
    if (Status s = read_header(cursor, header); !s.ok()) {
        return s;
    }
    for (std::uint64_t i = 0; i < header.num_values; ++i) {
        std::string key;
        Value value;
        if (Status s = cursor.read_name(key, "key"); !s.ok()) {
            return s;
        }
        if (Status s = cursor.read_type(value.type); !s.ok()) {
            return s;
        }
        if (Status s = cursor.skip_payload(value, 0); !s.ok()) {
            return s;
        }
        if (!file.values_.emplace(std::move(key), value).second) {
            return corrupt(fmt::format("value {} repeats the key of an earlier one", i));
        }
    }
    for (std::uint64_t i = 0; i < header.num_tensors; ++i) {
        std::string name;
        Tensor tensor;
        if (Status s = cursor.read_name(name, "tensor name"); !s.ok()) {
            return s;
        }
        if (Status s = read_tensor_info(cursor, tensor); !s.ok()) {
            return s;
        }
        if (!file.tensors_.emplace(std::move(name), std::move(tensor)).second) {
            return corrupt(fmt::format("tensor {} repeats the name of an earlier one", i));
        }
    }
    if (file.find("general.alignment") != nullptr) {
        const Result<std::uint64_t> alignment = file.unsigned_integer("general.alignment");
        if (!alignment.ok()) {
            return alignment.status();
        }
        if (alignment.value() > kMaxAlignment || !std::has_single_bit(alignment.value())) {
            return corrupt(
                fmt::format("general.alignment: got {}, expected a power of two up to {}", alignment.value(), kMaxAlignment));
        }
        file.alignment_ = static_cast<std::uint32_t>(alignment.value());
    }
    const std::uint64_t padding = (0 - cursor.position()) & (file.alignment_ - 1);
    if (padding > cursor.remaining()) {
        // Without tensors nothing follows the header, and writers may leave the padding out.
        if (!file.tensors_.empty()) {
            return corrupt("the file ends before its tensor data");
        }
        file.data_offset_ = file.source_->size();
    } else {
        file.data_offset_ = cursor.position() + padding;
    }
    return file;
}

const Value* File::find(std::string_view key) const {
    const auto it = values_.find(key);
    return it == values_.end() ? nullptr : &it->second;
}

const Tensor* File::find_tensor(std::string_view name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &it->second;
}

Result<std::vector<std::byte>> File::bytes(std::uint64_t offset, std::uint64_t count) const {
    std::vector<std::byte> out(static_cast<std::size_t>(count));
    if (Status s = source_->read(offset, out); !s.ok()) {
        return s;
    }
    return out;
}

Result<std::string> File::string(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr || value->type != ValueType::string) {
        return corrupt(fmt::format("{}: {}, expected a string", key, value == nullptr ? "it is missing" : "it has another type"));
    }
    std::string out(static_cast<std::size_t>(value->count), '\0');
    if (Status s = source_->read(value->offset, std::as_writable_bytes(std::span(out))); !s.ok()) {
        return s;
    }
    return out;
}

Result<std::int64_t> File::integer(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr || !is_integer(value->type)) {
        return corrupt(
            fmt::format("{}: {}, expected an integer", key, value == nullptr ? "it is missing" : "it has another type"));
    }
    std::array<std::byte, 8> raw{};
    const std::size_t size = static_cast<std::size_t>(scalar_size(value->type));
    if (Status s = source_->read(value->offset, std::span(raw).first(size)); !s.ok()) {
        return s;
    }
    const std::uint64_t number = load_integer(raw.data(), size, is_signed(value->type));
    if (value->type == ValueType::u64 && number >> 63) {
        return corrupt(fmt::format("{}: got {}, expected a number below 2^63", key, number));
    }
    return static_cast<std::int64_t>(number);
}

Result<std::uint64_t> File::unsigned_integer(std::string_view key) const {
    const Value* value = find(key);
    if (value != nullptr && value->type == ValueType::u64) {
        std::uint64_t number = 0;
        if (Status s = source_->read(value->offset, std::as_writable_bytes(std::span(&number, 1))); !s.ok()) {
            return s;
        }
        return number;
    }
    const Result<std::int64_t> number = integer(key);
    if (!number.ok()) {
        return number.status();
    }
    if (number.value() < 0) {
        return corrupt(fmt::format("{}: got {}, expected a number >= 0", key, number.value()));
    }
    return static_cast<std::uint64_t>(number.value());
}

Result<std::vector<std::uint64_t>> File::unsigned_array(std::string_view key) const {
    const Value* value = find(key);
    const bool usable =
        value != nullptr && value->type == ValueType::array && is_integer(value->element) && scalar_size(value->element) >= 4;
    if (!usable) {
        return corrupt(fmt::format("{}: {}, expected an array of 32- or 64-bit integers", key,
                                   value == nullptr ? "it is missing" : "it has another type"));
    }
    const std::size_t size = static_cast<std::size_t>(scalar_size(value->element));
    std::vector<std::uint64_t> out(static_cast<std::size_t>(value->count));
    // Packed into the front of the result first, then spread from the back, so that no second buffer is needed.
    auto* raw = reinterpret_cast<std::byte*>(out.data());
    if (Status s = source_->read(value->offset, std::span(raw, out.size() * size)); !s.ok()) {
        return s;
    }
    for (std::size_t i = out.size(); i-- > 0;) {
        out[i] = load_integer(raw + i * size, size, is_signed(value->element));
        if (is_signed(value->element) && out[i] >> 63) {
            return corrupt(fmt::format("{}: element {} is negative", key, i));
        }
    }
    return out;
}

Result<std::vector<std::byte>> File::tensor_bytes(std::string_view name) const {
    const Tensor* tensor = find_tensor(name);
    if (tensor == nullptr) {
        return corrupt(fmt::format("tensor {}: it is missing", name));
    }
    const std::size_t element = tensor_element_size(tensor->type);
    if (element == 0) {
        return corrupt(fmt::format("tensor {}: got type {}, expected a plain type", name, tensor->type));
    }
    const std::uint64_t available = data_size();
    if (tensor->offset % alignment_ != 0 || tensor->offset > available ||
        tensor->elements > (available - tensor->offset) / element) {
        return corrupt(fmt::format("tensor {}: {} elements at offset {} do not lie inside the file's {} bytes of data", name,
                                   tensor->elements, tensor->offset, available));
    }
    return bytes(data_offset_ + tensor->offset, tensor->elements * element);
}

Result<std::uint64_t> File::hash_without(std::string_view key) const {
    const Value* own = find(key);
    if (own == nullptr || own->type != ValueType::u64) {
        return corrupt(fmt::format("{}: {}, expected a u64", key, own == nullptr ? "it is missing" : "it has another type"));
    }
    constexpr std::uint64_t kChunkBytes = 1 << 16;
    std::vector<std::byte> chunk;
    Fnv hash;
    for (std::uint64_t at = 0; at < source_->size(); at += chunk.size()) {
        chunk.resize(static_cast<std::size_t>(std::min(kChunkBytes, source_->size() - at)));
        if (Status s = source_->read(at, chunk); !s.ok()) {
            return s;
        }
        for (std::size_t i = 0; i < chunk.size(); ++i) {
            const bool inside = at + i >= own->offset && at + i < own->offset + sizeof(std::uint64_t);
            hash.add_byte(inside ? 0 : static_cast<std::uint8_t>(chunk[i]));
        }
    }
    return hash.value();
}

}  // namespace vecinfer::gguf
