// A scheme says how a KV cache is stored: key transform x key codec x value transform x value codec x window.
//
// Short spelling:  f16 | <family>:k<width>v<width>[,option=value]...
//   kt       none, or any of center, smooth or smooth-opt, hadamard joined by +, or full, or center+full
//   vt       the same without smooth and smooth-opt
// Families are sets of defaults; each has widths of its own (bits per value -> codec):
//   vecinfer  4 = d2b8, 3 = d4b12, 2.5 = d4b10, 2 = d4b8, 1.5 = d8b12, 1 = d8b8; window 128 + 4 sinks
//   vecinfer-paper  the same widths as published: keys smooth+hadamard, values as they are, no norm, nearest centroids, a
//             prompt's own batch exact, window 128; needs a calibration
//   million   4 = d2b8, 3 = d4b12, 2.5 = d4b10, 2 = d4b8, one codebook per subspace, not transformed; needs a calibration
//   innerq    b<bits>-channel32-sym for keys, b<bits>-token32-sym for values: 2, 3, 4 (4 with groups of 64); 2h, 3h are hybrid; a
//             calibration adds the channel norm (smooth); window 96 + 32 sinks
//   kivi      2, 3, 4: keys b<bits>-token32-asym, values b<bits>-channel32-asym; window 128
//   rotated   4 = d1b4, 3 = d1b3, 2 = d1b2: Hadamard, one norm per vector, the best scalar levels for Gaussian entries
// Codecs: d<sub_dim>b<code_bits> is a vector quantizer; b<bits>-<channel|token><group>-<sym|asym|hybrid> a scalar one.
// Long spelling: vecinfer:k=d4b8,v=d4b8,kt=center+smooth-opt+hadamard,vt=hadamard,norm=vector,recent=128,...
// layers=<range>:<codecs>/<range>:<codecs>...  gives layers codecs of their own. A range is a layer or first-last; codecs are
// k<width>v<width>, <key codec>+<value codec> or f16: vecinfer:k2v2,layers=0-1:k4v4/29:f16
// Options of the long form may follow the short one, in any order, each once; what is left out has its default, so `vecinfer`
// is `vecinfer:k2v2`. kt, vt, norm and encode may be `auto`, which is their default. Case-sensitive, no blanks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vecinfer/export.h"
#include "vecinfer/status.h"

namespace vecinfer VECINFER_API {

enum class CodecKind { f16, vq, scalar };  // f16 is sub_dim 1, code_bits 16

/// What a group of a scalar codec is made of: neighbouring channels of one token, or one channel of neighbouring cells.
enum class Axis { channel, token };

/// Levels of a scalar codec of b bits. symmetric: scale * q, |q| < 2^(b-1). asymmetric: zero + scale * q, 0 <= q < 2^b. hybrid:
/// per group, symmetric at b bits or asymmetric at b - 1, whichever has the smaller sum of absolute errors (InnerQ).
enum class Levels { symmetric, asymmetric, hybrid };

/// Codec of one side (K or V).
/// vq: a head's vector is cut into pieces of sub_dim channels; each piece is the index of one of 2^code_bits centroids (VecInfer,
/// section "vector quantization").
/// scalar: sub_dim is 1; groups of values share an f16 scale and, unless symmetric, an f16 zero (KIVI, InnerQ).
struct CodecSpec {
    CodecKind kind = CodecKind::vq;
    int sub_dim = 4;    // channels per code: 1, 2, 4 or 8
    int code_bits = 8;  // bits per code: 8, 10 or 12; with sub_dim 1: 2, 3 or 4; scalar: 2, 3, 4 or 8
    int group = 0;      // scalar: values that share a scale: 16, 32 or 64, along channels also 128
    Axis axis = Axis::channel;
    Levels levels = Levels::symmetric;

    bool groups_channels() const noexcept { return kind == CodecKind::scalar && axis == Axis::channel; }
    bool groups_tokens() const noexcept { return kind == CodecKind::scalar && axis == Axis::token; }
    /// f16 numbers stored per group.
    int numbers_per_group() const noexcept { return levels == Levels::symmetric ? 1 : 2; }
    /// head_dim must be a multiple of this.
    int channel_step() const noexcept { return groups_channels() ? group : sub_dim; }
    bool operator==(const CodecSpec&) const = default;
};

/// The (sub_dim, code_bits) pairs that exist: d2b8 d4b8 d8b8 d4b10 d4b12 d8b12 d1b2 d1b3 d1b4.
std::span<const CodecSpec> supported_vq_specs() noexcept;

struct TransformSpec {
    bool smooth = false;     // divide channel i by its smooth factor; keys only, needs a calibration
    bool hadamard = false;   // orthonormal Hadamard transform over the head's channels
    bool automatic = false;  // not spelled out: resolve() decides
    bool center = false;     // subtract the mean that calibration saw, first of all; needs a calibration
    bool full = false;       // a calibrated head_dim x head_dim matrix in place of smooth and hadamard
    bool optimal = false;    // with smooth: factors (E[k^2] / E[q^2])^(1/4), which spread the expected score error evenly

    bool operator==(const TransformSpec&) const = default;
};

/// Whether each head's vector is divided by its own root mean square before vector quantization, at one byte per head and token.
/// Scalar codecs have scales of their own and no norm.
/// `automatic` becomes `vector` for data-free codebooks, which cannot work without, and the measured best when calibrated.
enum class Norm { automatic, none, vector };

/// Who shares a codebook: all KV heads of a layer, the subspaces of a KV head, or nobody (product quantization).
enum class Scope { layer, head, subspace };

/// `windowed`: a query reads keys older than `recent` from codes even inside its own batch, so results do not depend on how a
/// prompt is split. `exact`: keys of the current batch are all read exactly (the paper's prefill).
enum class Prefill { windowed, exact };

/// How vectors find their codes; decoding is the same. `nearest`: each piece its nearest centroid, the norm is the root mean
/// square. `unbiased`: the norm makes the decoded vector keep its projection on the original, which centroids, being means,
/// shorten; for values, and for keys if they are centered. `shaped`: besides, keys get the codes with the least expected error of
/// scores, given which directions queries look into (noise shaping); needs a calibration.
enum class Encode { automatic, nearest, unbiased, shaped };

struct WindowSpec {
    int recent = 128;  // latest tokens of a sequence read from f16, 0 to 4096
    int sink = 4;      // first tokens of a sequence read from f16, 0 to 256

    bool operator==(const WindowSpec&) const = default;
};

/// Layers [first, last] with codecs of their own, or in f16.
struct LayerOverride {
    int first = 0;
    int last = 0;
    bool f16 = false;
    CodecSpec key;  // with f16: as f16_scheme() has them
    CodecSpec value;

    bool operator==(const LayerOverride&) const = default;
};

struct Scheme {
    std::string family = "vecinfer";  // one of scheme_families()
    CodecSpec key;
    CodecSpec value;
    TransformSpec key_transform{.automatic = true};
    TransformSpec value_transform{.automatic = true};
    Norm norm = Norm::automatic;
    Scope scope = Scope::layer;
    WindowSpec window;
    Prefill prefill = Prefill::windowed;
    Encode encode = Encode::automatic;
    std::vector<LayerOverride> layers;  // rising, without overlap

    bool is_f16() const noexcept { return family == "f16"; }
    /// Whether a layer keeps its cache in f16.
    bool is_f16(int layer) const noexcept;
    bool operator==(const Scheme&) const = default;
};

/// What parse_scheme("f16") gives: no transforms, no norm and, since every row is f16, no window.
Scheme f16_scheme();

/// What one layer uses: the same scheme with its codecs in place and without `layers`; f16_scheme() for layers in f16.
Scheme scheme_of_layer(const Scheme& scheme, int layer);

/// Checks every part against the values that exist; parse_scheme gives valid schemes only.
Status validate(const Scheme& scheme);

/// An error if `layers` names layers that a model of `num_layers` does not have.
Status check_layers(const Scheme& scheme, int num_layers);

/// Parses either spelling. Errors name the part, what was got and the values that exist.
Result<Scheme> parse_scheme(std::string_view text);

/// Canonical short spelling: the family, both widths and what differs from its default. Parses back to the same scheme.
std::string to_string(const Scheme& scheme);

/// Every part spelled out, `auto` included. Parses back to the same scheme.
std::string to_long_string(const Scheme& scheme);

/// Replaces every `automatic` part by the family's choice. vecinfer data-free: keys and values hadamard, norm vector, one
/// universal codebook, encode unbiased; calibrated: keys center+smooth-opt+hadamard, values hadamard, norm vector, encode
/// shaped, which measured best (docs/results/quality.md). An error if a part that was spelled out cannot be had without a
/// calibration (kt with smooth, norm=none, scope=subspace, encode=shaped). Idempotent.
Result<Scheme> resolve(const Scheme& scheme, bool calibrated);

/// Codebooks of one side of a layer; 0 for codecs without.
std::size_t codebook_count(const CodecSpec& spec, Scope scope, int num_kv_heads, int head_dim) noexcept;

/// Directions that a calibration keeps for noise shaping: a quarter of the channels, 1 to 32.
int shaping_rank(int head_dim) noexcept;

/// Whether a layer's keys are encoded with noise shaping.
bool shapes_keys(const Scheme& scheme_of_layer) noexcept;

/// Whether a resolved scheme has anything to learn from samples: codebooks, means, smooth factors or matrices.
bool learns(const Scheme& scheme) noexcept;

/// Names accepted before the colon, for messages and help.
std::span<const std::string_view> scheme_families() noexcept;

/// Shape of one layer's cache. Head sizes of K and V may differ.
struct LayerShape {
    int layer = 0;  // index as the engine numbers it
    int num_kv_heads = 0;
    int head_dim_k = 0;
    int head_dim_v = 0;

    bool operator==(const LayerShape&) const = default;
};

/// Bytes of a cache over all layers, everything counted.
struct Footprint {
    double code_bytes_per_token = 0;      // codes and norms of one token
    double total_bytes_per_token = 0;     // (codes + window + codebooks, padding included) / context
    double f16_bytes_per_token = 0;       // the same cache in f16
    double code_bits_per_value = 0;       // codes alone
    double effective_bits_per_value = 0;  // everything, at the given context
    std::size_t window_bytes = 0;         // f16 rows with their cell and position
    std::size_t codebook_bytes = 0;       // int8 centroids, scales, factors and shaping directions, as a sidecar stores them
};

/// What `context` tokens (1 to 2^31 - 1) of one sequence take. Window and codebooks are counted in full. `calibrated` as in
/// resolve(). Head sizes must be multiples of their side's sub_dim.
Result<Footprint> footprint(const Scheme& scheme, std::span<const LayerShape> layers, std::int64_t context, bool calibrated);

}  // namespace VECINFER_API
