#include "calibrate/relevance.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "codec/f16.h"

namespace vecinfer {

namespace {

constexpr int kQueriesPerBatch = 128;  // enough: a calibration has many batches
// Added to every direction, in units of the mean query energy: queries of other texts and longer contexts look elsewhere too.
// Without it the error grows more than its place improves (docs/results/quality.md).
constexpr double kRidge = 10.0;

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strided = Eigen::Map<const RowMatrix, 0, Eigen::OuterStride<>>;

}  // namespace

void Relevance::add(const KvRows& keys, const QueryRows& queries, const WindowSpec& window, float sm_scale) {
    const int dim = keys.head_dim;
    const int group = queries.num_qo_heads / keys.num_kv_heads;
    const auto tokens = std::min<std::int64_t>(keys.num_tokens, queries.num_tokens);
    if (heads_.empty()) {
        heads_.assign(keys.num_kv_heads,
                      {0, Eigen::VectorXd::Zero(dim), Eigen::VectorXd::Zero(dim), 0, Eigen::MatrixXd::Zero(dim, dim)});
    }
    // Short batches would show nothing but the window.
    const std::int64_t recent = std::min<std::int64_t>(window.recent, tokens / 4);
    const std::int64_t sink = std::min<std::int64_t>(window.sink, tokens / 4);
    const std::int64_t first = recent + sink;
    const std::int64_t step = std::max<std::int64_t>(1, (tokens - first) / kQueriesPerBatch);
    std::vector<std::int64_t> sample;
    for (std::int64_t t = first + batches_++ % step; t < tokens; t += step) {
        sample.push_back(t);
    }

    for (int head = 0; head < keys.num_kv_heads; ++head) {
        const Strided k(keys.rows + static_cast<std::ptrdiff_t>(head) * dim, tokens, dim, Eigen::OuterStride<>(keys.row_stride));
        RowMatrix q(static_cast<std::ptrdiff_t>(sample.size()) * group, dim);
        for (std::size_t i = 0; i < sample.size(); ++i) {
            for (int g = 0; g < group; ++g) {
                q.row(static_cast<std::ptrdiff_t>(i) * group + g) = Eigen::Map<const Eigen::RowVectorXf>(
                    queries.queries + sample[i] * queries.token_stride + (head * group + g) * queries.head_stride, dim);
            }
        }
        RowMatrix p = sm_scale * (q * k.transpose());
        Eigen::VectorXf key_weight = Eigen::VectorXf::Zero(tokens);
        Eigen::VectorXf query_weight = Eigen::VectorXf::Zero(q.rows());
        for (std::ptrdiff_t row = 0; row < p.rows(); ++row) {
            const std::int64_t seen = sample[static_cast<std::size_t>(row / group)] + 1;
            auto scores = p.row(row).head(seen);
            scores = (scores.array() - scores.maxCoeff()).exp().matrix().eval();
            scores /= scores.sum();
            const std::int64_t coded = seen - recent - sink;
            const Eigen::RowVectorXf f = scores.segment(sink, coded).array() * (1.0f - scores.segment(sink, coded).array());
            query_weight[row] = f.sum();
            key_weight.segment(sink, coded) += q.row(row).squaredNorm() * f.transpose();
        }
        Head& out = heads_[head];
        const Eigen::VectorXd kw = key_weight.cast<double>();
        out.key_weight += kw.sum();
        out.key_sum += k.transpose().cast<double>() * kw;
        out.key_square_sum += k.array().square().matrix().transpose().cast<double>() * kw;
        out.query_weight += query_weight.cast<double>().sum();
        out.query_moment += (q.transpose() * query_weight.asDiagonal() * q).cast<double>();
    }
}

bool Relevance::empty() const noexcept {
    // Eigen's exp never quite reaches 0, so a head that reads nothing from codes has a trace of weight.
    constexpr double kTrace = 1e-12;
    return heads_.empty() || std::any_of(heads_.begin(), heads_.end(),
                                         [](const Head& h) { return !(h.query_weight > kTrace) || !(h.key_weight > 0); });
}

std::vector<float> shaping_directions(const std::vector<Eigen::MatrixXd>& query_moments,
                                      const std::vector<HeadTransform>& transforms) {
    const int dim = transforms.front().head_dim();
    const int rank = shaping_rank(dim);
    std::vector<float> out;
    for (std::size_t head = 0; head < transforms.size(); ++head) {
        // T^T C T, T being the transform of queries: rows through T, twice.
        RowMatrix moment = query_moments[head].cast<float>();
        for (int side = 0; side < 2; ++side) {
            for (int i = 0; i < dim; ++i) {
                transforms[head].forward_query(moment.row(i).data(), moment.row(i).data());
            }
            moment.transposeInPlace();
        }
        const double trace = moment.trace();
        if (!(trace > 0)) {
            out.resize(out.size() + static_cast<std::size_t>(rank) * dim, 0.0f);
            continue;
        }
        const Eigen::MatrixXd w = moment.cast<double>() * (dim / trace);
        const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> eigen(0.5 * (w + w.transpose()));
        const double rest = eigen.eigenvalues().head(dim - rank).mean();
        for (int r = 0; r < rank; ++r) {
            const double gain = std::sqrt(std::max(eigen.eigenvalues()[dim - 1 - r] - rest, 0.0) / (rest + kRidge));
            for (int d = 0; d < dim; ++d) {
                out.push_back(f16_to_f32(f32_to_f16(static_cast<float>(gain * eigen.eigenvectors()(d, dim - 1 - r)))));
            }
        }
    }
    return out;
}

}  // namespace vecinfer
