#include "calibrate/full_transform.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>

#include "codec/f16.h"
#include "vecinfer/transform.h"

namespace vecinfer {

namespace {

// Directions that calibration hardly saw are kept from blowing up: this share of the mean energy is added to every one.
constexpr double kRidge = 1e-3;

// E[(x - center)(x - center)^T] over the given heads of a sample.
Eigen::MatrixXd second_moment(const HeadSamples& s, int first_head, int num_heads, const float* center) {
    const int dim = s.head_dim;
    const auto row_dim = static_cast<std::ptrdiff_t>(s.num_heads) * dim;
    const auto n = static_cast<std::ptrdiff_t>(s.rows.size()) / row_dim;
    Eigen::MatrixXd x(n * num_heads, dim);
    for (std::ptrdiff_t i = 0; i < n; ++i) {
        for (int h = 0; h < num_heads; ++h) {
            for (int d = 0; d < dim; ++d) {
                const float v = f16_to_f32(s.rows[static_cast<std::size_t>(i * row_dim + (first_head + h) * dim + d)]);
                x(i * num_heads + h, d) = v - (center != nullptr ? center[d] : 0.0f);
            }
        }
    }
    Eigen::MatrixXd moment = x.transpose() * x / static_cast<double>(std::max<std::ptrdiff_t>(n * num_heads, 1));
    moment.diagonal().array() += kRidge * moment.trace() / dim + 1e-12;
    return moment;
}

// Orthonormal: Hadamard inside each of sub_dim bands, then channel j of every band into subspace j.
Eigen::MatrixXd band_mixing(int dim, int sub_dim) {
    const int band = dim / sub_dim;
    Eigen::MatrixXd mix = Eigen::MatrixXd::Zero(dim, dim);
    std::vector<float> unit(band);
    for (int b = 0; b < sub_dim; ++b) {
        for (int i = 0; i < band; ++i) {
            unit.assign(band, 0.0f);
            unit[i] = 1.0f;
            // An odd band has no Hadamard matrix; its channels stay apart.
            const bool mixed = hadamard(unit.data(), band).ok();
            for (int j = 0; j < band; ++j) {
                mix(b * band + i, j * sub_dim + b) = mixed ? unit[j] : (i == j ? 1.0 : 0.0);
            }
        }
    }
    return mix;
}

}  // namespace

std::vector<float> full_matrices(const HeadSamples& rows, const HeadSamples& queries, std::span<const float> center,
                                 int sub_dim) {
    const int dim = rows.head_dim;
    const Eigen::MatrixXd mix = band_mixing(dim, sub_dim);
    const int group = queries.num_heads / rows.num_heads;
    std::vector<float> all;
    for (int head = 0; head < rows.num_heads; ++head) {
        Eigen::MatrixXd metric = Eigen::MatrixXd::Identity(dim, dim);
        if (group > 0) {
            metric = second_moment(queries, head * group, group, nullptr).llt().matrixL();
        }
        const Eigen::MatrixXd moment =
            second_moment(rows, head, 1, center.empty() ? nullptr : center.data() + static_cast<std::ptrdiff_t>(head) * dim);
        const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> eigen(metric.transpose() * moment * metric);
        const Eigen::MatrixXd falling = eigen.eigenvectors().rowwise().reverse();
        const Eigen::MatrixXd matrix = metric * falling * mix;
        for (int i = 0; i < dim; ++i) {
            for (int j = 0; j < dim; ++j) {
                all.push_back(static_cast<float>(matrix(i, j)));
            }
        }
    }
    return all;
}

}  // namespace vecinfer
