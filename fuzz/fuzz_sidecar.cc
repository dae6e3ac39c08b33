// parse_sidecar takes any bytes; what it accepts must come out again as bytes that parse to the same content.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "sidecar/gguf_reader.h"
#include "vecinfer/sidecar.h"

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

/// The file's own hash stops every mutation, so it is made right first: then what lies behind it is reached too.
void repair_hash(std::vector<std::byte>& bytes) {
    const vecinfer::Result<vecinfer::gguf::File> file = vecinfer::gguf::File::open(vecinfer::gguf::memory_source(bytes));
    if (!file.ok()) {
        return;
    }
    const vecinfer::gguf::Value* value = file->find("vecinfer.file_hash");
    const vecinfer::Result<std::uint64_t> hash = file->hash_without("vecinfer.file_hash");
    if (hash.ok()) {
        std::memcpy(bytes.data() + value->offset, &hash.value(), sizeof(std::uint64_t));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto* begin = reinterpret_cast<const std::byte*>(data);
    std::vector<std::byte> bytes(begin, begin + size);
    repair_hash(bytes);
    const vecinfer::Result<vecinfer::Sidecar> sidecar = vecinfer::parse_sidecar(bytes);
    if (!sidecar.ok()) {
        require(!sidecar.status().message().empty());
        return 0;
    }
    const vecinfer::Result<std::vector<std::byte>> written = vecinfer::serialize_sidecar(sidecar.value());
    require(written.ok());
    require(vecinfer::parse_sidecar(written.value()).value() == sidecar.value());
    return 0;
}
