// Inspection: what a model's keys and values look like before and after a transform, and what a codec makes of them.
//
// All functions take the rows of one layer (calibrate.h) and look at them as they are; none changes or keeps anything.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vecinfer/calibrate.h"
#include "vecinfer/codec.h"
#include "vecinfer/export.h"
#include "vecinfer/scheme.h"
#include "vecinfer/status.h"
#include "vecinfer/transform.h"

namespace vecinfer VECINFER_API {

/// Transforms of one side, one per KV head, with factors taken from these very rows by the definitions of Calibrator::finish:
/// center m_i = E[x_i]; smooth lambda_i = sqrt(max |x_i|); smooth-opt lambda_i = (E[(x_i - m_i)^2] / E[q_i^2])^(1/4). `queries`
/// is needed for smooth-opt only. `full` is not available here (ErrorCode::unsupported).
Result<std::vector<HeadTransform>> fit_transforms(const TransformSpec& spec, const KvRows& rows, const QueryRows* queries);

/// How magnitudes are spread over channels and tokens, in code space.
struct Spread {
    std::vector<float> channel_mean_abs;  // layout (num_kv_heads, head_dim)
    std::vector<float> channel_max_abs;   // likewise
    std::vector<float> token_rms;         // [num_tokens] over all heads
    int map_tokens = 0;                   // rows of `map`
    std::vector<float> map;               // mean |x|, layout (map_tokens, num_kv_heads * head_dim): neighbouring tokens together
    double kurtosis = 0;       // mean fourth power of entries divided by their vector's root mean square: 3 if they are normal,
                               // head_dim at most
    double max_over_mean = 0;  // mean over vectors of max |x| / mean |x|
};

/// `transforms`: one per KV head, of the rows' head_dim. `map_tokens`: at most so many rows in the map. Vectors that are all zero
/// do not count for kurtosis and max_over_mean.
Result<Spread> measure_spread(const KvRows& rows, std::span<const HeadTransform> transforms, int map_tokens = 64);

/// How a head's codes use its centroids. With a codebook per subspace (product quantization): centroids of all of them, and the
/// mean of their entropies.
struct CodeUsage {
    int num_centroids = 0;
    std::int64_t codes = 0;   // codes seen
    int dead = 0;             // centroids that no code named
    double entropy_bits = 0;  // of the frequencies of codes; code_bits at most
};

/// One per KV head. ErrorCode::unsupported for scalar codecs, which have no centroids.
Result<std::vector<CodeUsage>> measure_code_usage(const RowCodec& codec, const KvRows& rows);

/// Rows after a trip through the codec, in the original space, layout (num_tokens, num_kv_heads * head_dim). Codecs that group
/// tokens get all rows at once, as neighbouring cells of a cache.
Result<std::vector<float>> reconstruct(const RowCodec& codec, const KvRows& rows);

/// Sum of squared errors over sum of squares, one per KV head; 0 where the rows are all zero and are kept so.
Result<std::vector<double>> relative_mse(const KvRows& rows, const KvRows& decoded);

/// What errors of keys do to attention scores.
struct ScoreError {
    double rms = 0;        // of the error of q.k / sqrt(head_dim), in the units of the softmax's input
    double score_std = 0;  // standard deviation of those scores themselves, within a query
};

/// One per KV head, over all queries of its group: each query sees the keys up to its own token. What is equal for all keys of a
/// query is taken out first, in errors and scores alike, as softmax does not see it. At most `max_queries` tokens, evenly drawn,
/// and never the first.
Result<std::vector<ScoreError>> measure_score_error(const KvRows& keys, const KvRows& decoded, const QueryRows& queries,
                                                    int max_queries = 64);

}  // namespace VECINFER_API
