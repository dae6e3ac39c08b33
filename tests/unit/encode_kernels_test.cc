// The kernels of encoding on every ISA, against the definition of their searches written out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "codec/vq/encode.h"
#include "codec/vq/shaping.h"
#include "codec/vq/tables.h"
#include "random.h"

namespace vecinfer {
namespace {

std::vector<float> normals(int n, std::uint64_t seed, double scale = 1.0) {
    Random random(seed);
    std::vector<float> out;
    for (int i = 0; i < n; ++i) {
        out.push_back(static_cast<float>(scale * random.normal()));
    }
    return out;
}

class EncodeKernelsOf : public testing::TestWithParam<Isa> {
protected:
    void SetUp() override {
        const std::span<const Isa> isas = available_isas();
        if (std::find(isas.begin(), isas.end(), GetParam()) == isas.end()) {
            GTEST_SKIP() << "this CPU lacks " << isa_name(GetParam());
        }
    }
};
INSTANTIATE_TEST_SUITE_P(Isas, EncodeKernelsOf, testing::Values(Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512vbmi),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

/// Codebooks that are hard to search: the usual one, one whose entries tie by the dozen, one that uses all of int8, one of
/// corners, whose products are the largest there are, and two of extreme scale.
std::vector<Codebook> codebooks(const CodecSpec& spec) {
    const Codebook usual = *universal_codebook(spec.sub_dim, spec.code_bits);
    Codebook ties = usual;
    for (std::int8_t& c : ties.centroids) {
        c = static_cast<std::int8_t>(c / 32 * 32);
    }
    Codebook extremes = usual;
    Random random(5);
    for (std::int8_t& c : extremes.centroids) {
        c = static_cast<std::int8_t>(random.next() % 256);  // -128 too
    }
    Codebook corners = usual;
    for (std::size_t i = 0; i < corners.centroids.size(); ++i) {
        corners.centroids[i] = i / spec.sub_dim >> i % spec.sub_dim & 1 ? 127 : -127;
    }
    std::vector<Codebook> all = {usual, ties, extremes, corners, usual, usual};
    all[4].scale = 1e-20f;
    all[5].scale = 3e30f;
    return all;
}

/// `volatile` keeps every operation rounded by itself.
int nearest(const Codebook& book, const float* x) {
    int best = 0;
    float least = INFINITY;
    for (int i = 0; i < book.num_centroids(); ++i) {
        volatile float sum = 0.0f;
        for (int c = 0; c < book.sub_dim; ++c) {
            volatile float difference = x[c] - book.at(i, c);
            volatile float square = difference * difference;
            sum = sum + square;
        }
        if (sum < least) {
            least = sum;
            best = i;
        }
    }
    return best;
}

double distance(const Codebook& book, int i, const float* x) {
    double sum = 0;
    for (int c = 0; c < book.sub_dim; ++c) {
        const double difference = static_cast<double>(x[c]) - static_cast<double>(book.at(i, c));
        sum += difference * difference;
    }
    return sum;
}

/// Whether no centroid is nearer, but for the roundings of two sums of squares.
bool is_nearest_in_doubles(const Codebook& book, int code, const float* x) {
    double least = INFINITY;
    for (int i = 0; i < book.num_centroids(); ++i) {
        least = std::min(least, distance(book, i, x));
    }
    return distance(book, code, x) <= least * (1 + 2 * (book.sub_dim + 3) * 0x1p-24);
}

TEST_P(EncodeKernelsOf, FindTheNearestCentroid) {
    for (const CodecSpec& spec : supported_vq_specs()) {
        const auto find_nearest = encode_kernels(GetParam(), spec.sub_dim).find_nearest;
        const std::vector<Codebook> books = codebooks(spec);
        for (std::size_t which = 0; which < books.size(); ++which) {
            const Codebook& book = books[which];
            const auto tables = make_tables({book});
            const int searched = searched_centroids(book.num_centroids());
            const ScanTables scan = ScanTables::for_nearest(tables.get(), spec.sub_dim, searched, book.scale);
            const int n = spec.code_bits > 8 ? 75 : 1111;
            const float unit = book.scale / universal_codebook(spec.sub_dim, spec.code_bits)->scale;
            std::vector<float> x = normals(n * spec.sub_dim, 20 + which, unit);
            for (int i = 0; i < n; ++i) {
                float* at = x.data() + i * spec.sub_dim;
                if (i % 10 == 3) {  // right between two centroids, or on one
                    const int a = i * 7 % book.num_centroids();
                    const int b = i * 13 % book.num_centroids();
                    for (int c = 0; c < spec.sub_dim; ++c) {
                        at[c] = 0.5f * book.at(a, c) + 0.5f * book.at(i % 20 == 3 ? a : b, c);
                    }
                }
                if (i % 10 == 5) {  // outside, towards a corner, so far that integers just reach it or just do not
                    for (int c = 0; c < spec.sub_dim; ++c) {
                        at[c] = (i * 37 >> c & 16 ? 127.0f : -127.0f) * book.scale * static_cast<float>(i % 90) / 10.0f;
                    }
                }
                if (i % 200 == 9) {
                    std::fill_n(at, spec.sub_dim, 0.0f);
                }
                if (i % 200 == 7) {  // far away, or no number at all
                    at[i % spec.sub_dim] = i % 400 == 7 ? 100.0f * unit : i % 3 == 0 ? NAN : -INFINITY;
                }
            }
            for (const int count : {n, 1, 2, 13, 33}) {
                std::vector<std::uint16_t> codes(n + 1, 0xffff);
                find_nearest(x.data(), count, scan.table(), codes.data());
                for (int i = 0; i < count; ++i) {
                    ASSERT_EQ(codes[i], nearest(book, x.data() + i * spec.sub_dim))
                        << "d" << spec.sub_dim << "b" << spec.code_bits << " codebook " << which << " at " << i << " of "
                        << count;
                }
                ASSERT_EQ(codes[count], 0xffff);
                for (int i = 0; which < 4 && count == n && i < count; i += 3) {  // squares of others vanish or overflow
                    const float* at = x.data() + i * spec.sub_dim;
                    if (std::all_of(at, at + spec.sub_dim, [](float v) { return std::isfinite(v); })) {
                        ASSERT_TRUE(is_nearest_in_doubles(book, codes[i], at)) << spec.sub_dim << ' ' << which << ' ' << i;
                    }
                }
            }
        }
    }
}

/// Noise shaping as shaping.h and shaping.inl define it, one number after the other.
void improve(const ShapingTables& t, int d, const float* y, std::uint16_t* codes) {
    const int count = t.head_dim / d;
    std::vector<float> error(t.head_dim);
    std::vector<float> z(t.rank, 0.0f);
    const auto add = [&](int m, float sign) {
        for (int i = m * d; i < (m + 1) * d; ++i) {
            for (int r = 0; r < t.rank; ++r) {
                volatile float product = sign * error[i] * t.by_channel[i * t.rank + r];
                z[r] = z[r] + product;
            }
        }
    };
    const auto set = [&](int m) {
        for (int c = 0; c < d; ++c) {
            error[m * d + c] = t.centroids[c * t.num_centroids + codes[m]] - y[m * d + c];
        }
    };
    for (int m = 0; m < count; ++m) {
        set(m);
        add(m, 1.0f);
    }
    for (int visit = 0; visit < ShapingTables::kPasses * count; ++visit) {
        const int m = visit % count;
        add(m, -1.0f);
        float goal[8];
        for (int a = 0; a < d; ++a) {
            volatile float others = 0;
            for (int r = 0; r < t.rank; ++r) {
                volatile float product = t.by_channel[(m * d + a) * t.rank + r] * z[r];
                others = others + product;
            }
            volatile float own = 0;
            for (int b = 0; b < d; ++b) {
                volatile float product = t.metric[(m * d + a) * d + b] * y[m * d + b];
                own = own + product;
            }
            goal[a] = own - others;
        }
        float least = INFINITY;
        codes[m] = 0;
        for (int i = 0; i < t.num_centroids; ++i) {
            volatile float cost = t.bias[m * t.num_centroids + i];
            for (int c = 0; c < d; ++c) {
                volatile float product = 2.0f * goal[c] * t.centroids[c * t.num_centroids + i];
                cost = cost - product;
            }
            if (cost < least) {
                least = cost;
                codes[m] = static_cast<std::uint16_t>(i);
            }
        }
        set(m);
        add(m, 1.0f);
    }
}

TEST_P(EncodeKernelsOf, ShapeNoiseAsDefined) {
    for (const CodecSpec& spec : supported_vq_specs()) {
        const int d = spec.sub_dim;
        if (d == 1 || spec.code_bits > 8) {
            continue;  // larger codebooks take the search above
        }
        const EncodeKernels kernels = encode_kernels(GetParam(), d);
        for (const int head_dim : {64, 80, 128}) {
            for (const int rank : {1, 16, 29}) {
                // The first four codebooks: of extreme scale there is nothing to shape.
                for (int which = 0; which < 4; ++which) {
                    const Codebook book = codebooks(spec)[which];
                    const auto tables = make_tables({book});
                    const std::vector<float> directions = normals(rank * head_dim, 7, 1.5 / std::sqrt(head_dim));
                    const ShapingTables shaping =
                        shaping_tables(directions, head_dim, d, spec.code_bits, tables.get(), book.scale);
                    for (const int n : {1, 2, 3}) {
                        std::vector<float> y = normals(n * head_dim, 90 + n + which);
                        if (n == 1) {  // outside all centroids
                            for (float& v : y) {
                                v *= 127.0f * book.scale * static_cast<float>(rank % 7);
                            }
                        }
                        if (n == 2) {
                            y[5] = 60.0f;  // beyond what integers reach
                        }
                        std::vector<std::uint16_t> codes(n * head_dim / d);
                        for (std::size_t i = 0; i < codes.size(); ++i) {
                            codes[i] = static_cast<std::uint16_t>(nearest(book, y.data() + i * d));
                        }
                        std::vector<std::uint16_t> expected = codes;
                        for (int s = 0; s < n; ++s) {
                            improve(shaping, d, y.data() + s * head_dim, expected.data() + s * head_dim / d);
                        }
                        kernels.improve(shaping, n, y.data(), codes.data());
                        ASSERT_EQ(codes, expected) << d << ' ' << head_dim << ' ' << rank << ' ' << which << ' ' << n;
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace vecinfer
