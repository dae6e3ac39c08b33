// Which keys and queries matter to attention, learned from real attention probabilities.
//
// An error e of key k changes the score of query q by q . e, and to second order the softmax output by p (1 - p) (q . e)^2, p
// being the probability that q gives to k. So a key counts by the sum of p (1 - p) |q|^2 over the queries that read it from
// codes, a query by the sum of p (1 - p) over the keys that it reads from codes. The plain mean of the keys is a bad centre where
// a few keys draw most of the attention: it leaves those with the largest norm, hence the largest error.
#pragma once

#include <Eigen/Core>
#include <vector>

#include "vecinfer/calibrate.h"

namespace vecinfer {

class Relevance {
public:
    struct Head {
        double key_weight = 0;
        Eigen::VectorXd key_sum;         // [head_dim] sum of weight * k
        Eigen::VectorXd key_square_sum;  // [head_dim] sum of weight * k^2
        double query_weight = 0;
        Eigen::MatrixXd query_moment;  // (head_dim, head_dim) sum of weight * q q^T over the group's query heads
    };

    /// A batch of one sequence from its start: token i of both is the same. `window`: rows that would not be read from codes.
    void add(const KvRows& keys, const QueryRows& queries, const WindowSpec& window, float sm_scale);

    /// Without any weight (no batches, or all attention goes to the window) there is nothing to be learned.
    bool empty() const noexcept;
    const std::vector<Head>& heads() const noexcept { return heads_; }

private:
    std::vector<Head> heads_;
    int batches_ = 0;
};

/// Directions for RowCodec's noise shaping, layout (num_heads, rank, head_dim): the strongest of each head's query moments, taken
/// into code space by its transform, in units of the mean of the rest and a ridge, rounded to f16. rank is
/// shaping_rank(head_dim).
std::vector<float> shaping_directions(const std::vector<Eigen::MatrixXd>& query_moments,
                                      const std::vector<HeadTransform>& transforms);

}  // namespace vecinfer
