// Version, errors, schemes, sidecars and codecs of the C API.
#include "vecinfer/vecinfer_c.h"

#include <fmt/format.h>

#include <cstring>

#include "capi/handles.h"
#include "vecinfer/version.h"

namespace vecinfer::capi {
namespace {

static_assert(VECINFER_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument));
static_assert(VECINFER_MISMATCH == static_cast<int>(ErrorCode::mismatch));
static_assert(VECINFER_CANCELLED == static_cast<int>(ErrorCode::cancelled));

std::string& last_error() noexcept {
    thread_local std::string message;
    return message;
}

const LayerCalibration* find_layer(const Sidecar& sidecar, int layer) noexcept {
    for (const LayerCalibration& calibration : sidecar.layers) {
        if (calibration.shape.layer == layer) {
            return &calibration;
        }
    }
    return nullptr;
}

}  // namespace

vecinfer_code report(const Status& status) noexcept {
    if (!status.ok()) {
        try {
            last_error() = status.message();
        } catch (const std::bad_alloc&) {
            last_error().clear();
        }
    }
    return static_cast<vecinfer_code>(status.code());
}

Status check_pointers(std::initializer_list<const void*> pointers, std::initializer_list<const char*> names) {
    auto name = names.begin();
    for (const void* pointer : pointers) {
        if (pointer == nullptr) {
            return argument_error(*name, "NULL", "a pointer");
        }
        ++name;
    }
    return {};
}

}  // namespace vecinfer::capi

using vecinfer::Result;
using vecinfer::Status;
using vecinfer::capi::call;
using vecinfer::capi::check_pointers;
using vecinfer::capi::to_shape;

const char* vecinfer_version(void) {
    return vecinfer::version().data();
}

const char* vecinfer_code_name(vecinfer_code code) {
    return vecinfer::error_code_name(static_cast<vecinfer::ErrorCode>(code)).data();
}

const char* vecinfer_last_error(void) {
    return vecinfer::capi::last_error().c_str();
}

vecinfer_code vecinfer_scheme_parse(const char* text, vecinfer_scheme** scheme) {
    return call("vecinfer_scheme_parse", [&]() -> Status {
        if (Status s = check_pointers({text, scheme}, {"text", "scheme"}); !s.ok()) {
            return s;
        }
        const Result<vecinfer::Scheme> parsed = vecinfer::parse_scheme(text);
        if (!parsed.ok()) {
            return parsed.status();
        }
        *scheme = new vecinfer_scheme{parsed.value()};
        return {};
    });
}

void vecinfer_scheme_free(vecinfer_scheme* scheme) {
    delete scheme;
}

vecinfer_code vecinfer_scheme_print(const vecinfer_scheme* scheme, int long_form, char* buffer, size_t capacity, size_t* length) {
    return call("vecinfer_scheme_print", [&]() -> Status {
        if (Status s = check_pointers({scheme}, {"scheme"}); !s.ok()) {
            return s;
        }
        const std::string text = long_form ? to_long_string(scheme->value) : to_string(scheme->value);
        if (length != nullptr) {
            *length = text.size();
        }
        if (capacity == 0) {
            return {};
        }
        if (Status s = check_pointers({buffer}, {"buffer"}); !s.ok()) {
            return s;
        }
        if (capacity <= text.size()) {
            return vecinfer::argument_error("capacity", fmt::format("{}", capacity), fmt::format("at least {}", text.size() + 1));
        }
        std::memcpy(buffer, text.c_str(), text.size() + 1);
        return {};
    });
}

vecinfer_code vecinfer_scheme_footprint(const vecinfer_scheme* scheme, const vecinfer_layer_shape* layers, size_t num_layers,
                                        int64_t context, int calibrated, vecinfer_footprint* footprint) {
    return call("vecinfer_scheme_footprint", [&]() -> Status {
        if (Status s = check_pointers({scheme, layers, footprint}, {"scheme", "layers", "footprint"}); !s.ok()) {
            return s;
        }
        std::vector<vecinfer::LayerShape> shapes;
        for (std::size_t i = 0; i < num_layers; ++i) {
            shapes.push_back(to_shape(layers[i]));
        }
        const Result<vecinfer::Footprint> got = vecinfer::footprint(scheme->value, shapes, context, calibrated != 0);
        if (!got.ok()) {
            return got.status();
        }
        *footprint = {.code_bytes_per_token = got->code_bytes_per_token,
                      .total_bytes_per_token = got->total_bytes_per_token,
                      .f16_bytes_per_token = got->f16_bytes_per_token,
                      .code_bits_per_value = got->code_bits_per_value,
                      .effective_bits_per_value = got->effective_bits_per_value,
                      .window_bytes = got->window_bytes,
                      .codebook_bytes = got->codebook_bytes};
        return {};
    });
}

vecinfer_code vecinfer_sidecar_load(const char* path, vecinfer_sidecar** sidecar) {
    return call("vecinfer_sidecar_load", [&]() -> Status {
        if (Status s = check_pointers({path, sidecar}, {"path", "sidecar"}); !s.ok()) {
            return s;
        }
        Result<vecinfer::Sidecar> loaded = vecinfer::load_sidecar(path);
        if (!loaded.ok()) {
            return loaded.status();
        }
        *sidecar = new vecinfer_sidecar{std::move(loaded.value())};
        return {};
    });
}

vecinfer_code vecinfer_sidecar_parse(const void* bytes, size_t size, vecinfer_sidecar** sidecar) {
    return call("vecinfer_sidecar_parse", [&]() -> Status {
        if (Status s = check_pointers({bytes, sidecar}, {"bytes", "sidecar"}); !s.ok()) {
            return s;
        }
        Result<vecinfer::Sidecar> parsed = vecinfer::parse_sidecar({static_cast<const std::byte*>(bytes), size});
        if (!parsed.ok()) {
            return parsed.status();
        }
        *sidecar = new vecinfer_sidecar{std::move(parsed.value())};
        return {};
    });
}

void vecinfer_sidecar_free(vecinfer_sidecar* sidecar) {
    delete sidecar;
}

vecinfer_code vecinfer_sidecar_scheme(const vecinfer_sidecar* sidecar, vecinfer_scheme** scheme) {
    return call("vecinfer_sidecar_scheme", [&]() -> Status {
        if (Status s = check_pointers({sidecar, scheme}, {"sidecar", "scheme"}); !s.ok()) {
            return s;
        }
        *scheme = new vecinfer_scheme{sidecar->value.scheme};
        return {};
    });
}

size_t vecinfer_sidecar_num_layers(const vecinfer_sidecar* sidecar) {
    return sidecar == nullptr ? 0 : sidecar->value.layers.size();
}

vecinfer_code vecinfer_sidecar_layer(const vecinfer_sidecar* sidecar, size_t index, vecinfer_layer_shape* shape) {
    return call("vecinfer_sidecar_layer", [&]() -> Status {
        if (Status s = check_pointers({sidecar, shape}, {"sidecar", "shape"}); !s.ok()) {
            return s;
        }
        if (index >= sidecar->value.layers.size()) {
            return vecinfer::argument_error("index", fmt::format("{}", index),
                                            fmt::format("less than {} layers", sidecar->value.layers.size()));
        }
        const vecinfer::LayerShape& have = sidecar->value.layers[index].shape;
        *shape = {have.layer, have.num_kv_heads, have.head_dim_k, have.head_dim_v};
        return {};
    });
}

vecinfer_code vecinfer_codec_create(const vecinfer_scheme* scheme, const vecinfer_layer_shape* shape, vecinfer_side side,
                                    const vecinfer_sidecar* sidecar, vecinfer_codec** codec) {
    return call("vecinfer_codec_create", [&]() -> Status {
        if (Status s = check_pointers({scheme, shape, codec}, {"scheme", "shape", "codec"}); !s.ok()) {
            return s;
        }
        if (side != VECINFER_KEY && side != VECINFER_VALUE) {
            return vecinfer::argument_error("side", fmt::format("{}", static_cast<int>(side)), "VECINFER_KEY or VECINFER_VALUE");
        }
        const vecinfer::LayerCalibration* calibration = nullptr;
        if (sidecar != nullptr) {
            if (Status s = vecinfer::check_scheme(sidecar->value.scheme, scheme->value); !s.ok()) {
                return s;
            }
            calibration = vecinfer::capi::find_layer(sidecar->value, shape->layer);
            if (calibration == nullptr) {
                return {vecinfer::ErrorCode::mismatch, fmt::format("layer {} is not in the sidecar", shape->layer)};
            }
        }
        Result<vecinfer::RowCodec> made = side == VECINFER_KEY
                                              ? vecinfer::make_key_codec(scheme->value, to_shape(*shape), calibration)
                                              : vecinfer::make_value_codec(scheme->value, to_shape(*shape), calibration);
        if (!made.ok()) {
            return made.status();
        }
        *codec = new vecinfer_codec{std::make_shared<const vecinfer::RowCodec>(std::move(made.value()))};
        return {};
    });
}

void vecinfer_codec_free(vecinfer_codec* codec) {
    delete codec;
}

uint64_t vecinfer_codec_hash(const vecinfer_codec* codec) {
    return codec == nullptr ? 0 : codec->value->hash();
}
