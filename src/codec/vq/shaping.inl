// Noise shaping of N vectors at once, so that their chains of dependent operations overlap. Included by encode_<isa>.cc inside an
// anonymous namespace after it has defined
//   least_costs<D, N>(goals, tables, subspace, codes, stride)  codes[s * stride] <- the code with the least bias - 2 goal . c of
//                                                              goal s, as a LeastCostFn finds it; goals has kGoals floats, layout
//                                                              (N, D), those behind are 0
//   find_nearest<D>, kIsa
//
// The codes must be the same on every ISA, so the order of all sums over channels and directions is fixed: sums over directions
// run one direction after the other, with channels in the lanes, and updates over directions have directions in the lanes.

template <int D>
using Channels __attribute__((vector_size(4 * D))) = float;
using Directions __attribute__((vector_size(32))) = float;

template <class V>
inline V load_lanes(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <class V>
inline void store_lanes(float* p, const V& v) {
    std::memcpy(p, &v, sizeof v);
}

template <int D, int N>
class Improvement {
public:
    Improvement(const ShapingTables& tables, const float* y, std::uint16_t* codes)
        : t_(tables), y_(y), codes_(codes), num_subspaces_(tables.head_dim / D) {}

    void run() {
        for (int m = 0; m < num_subspaces_; ++m) {
            for (int s = 0; s < N; ++s) {
                set_error(s, m);
                set_own(s, m);
            }
        }
        sum_errors();
        for (int pass = 0; pass < ShapingTables::kPasses; ++pass) {
            for (int m = 0; m < num_subspaces_; ++m) {
                visit(m);
            }
        }
    }

private:
    std::uint16_t& code(int s, int m) { return codes_[s * num_subspaces_ + m]; }

    void set_error(int s, int m) {
        for (int c = 0; c < D; ++c) {
            error_[s][m * D + c] = t_.centroids[static_cast<std::ptrdiff_t>(c) * t_.num_centroids + code(s, m)] -
                                   y_[static_cast<std::ptrdiff_t>(s) * t_.head_dim + m * D + c];
        }
    }

    void set_own(int s, int m) {
        const float* w = t_.metric.data() + static_cast<std::ptrdiff_t>(m) * D * D;  // symmetric
        const float* y = y_ + static_cast<std::ptrdiff_t>(s) * t_.head_dim + m * D;
        Channels<D> own = load_lanes<Channels<D>>(w) * y[0];
        for (int b = 1; b < D; ++b) {
            own += load_lanes<Channels<D>>(w + b * D) * y[b];
        }
        store_lanes(own_[s] + m * D, own);
    }

    void sum_errors() {
        for (int r = 0; r < t_.rank; r += 8) {
            Directions z[N] = {};
            for (int d = 0; d < t_.head_dim; ++d) {
                const auto u = load_lanes<Directions>(t_.by_channel.data() + static_cast<std::ptrdiff_t>(d) * t_.rank + r);
                for (int s = 0; s < N; ++s) {
                    z[s] += u * error_[s][d];
                }
            }
            for (int s = 0; s < N; ++s) {
                store_lanes(z_[s] + r, z[s]);
            }
        }
    }

    // z += sign * errors of subspace m.
    void add_error(int m, float sign) {
        const float* u = t_.by_channel.data() + static_cast<std::ptrdiff_t>(m) * D * t_.rank;
        for (int r = 0; r < t_.rank; r += 8) {
            for (int s = 0; s < N; ++s) {
                auto z = load_lanes<Directions>(z_[s] + r);
                for (int c = 0; c < D; ++c) {
                    z += load_lanes<Directions>(u + c * t_.rank + r) * (sign * error_[s][m * D + c]);
                }
                store_lanes(z_[s] + r, z);
            }
        }
    }

    void visit(int m) {
        add_error(m, -1.0f);
        // Half the slope of the cost at centroid 0 is -goal: cost(c) = c^T W c - 2 goal . c + const.
        const float* u = t_.by_rank.data() + static_cast<std::ptrdiff_t>(m) * t_.rank * D;
        Channels<D> others[N] = {};
        for (int r = 0; r < t_.rank; ++r) {
            const auto direction = load_lanes<Channels<D>>(u + r * D);
            for (int s = 0; s < N; ++s) {
                others[s] += direction * z_[s][r];
            }
        }
        alignas(32) float goals[kGoals] = {};
        for (int s = 0; s < N; ++s) {
            store_lanes(goals + s * D, load_lanes<Channels<D>>(own_[s] + m * D) - others[s]);
        }
        if (t_.bias != nullptr) {
            least_costs<D, N>(goals, t_, m, &code(0, m), num_subspaces_);
        } else {
            approach(goals, m);
        }
        for (int s = 0; s < N; ++s) {
            set_error(s, m);
        }
        add_error(m, 1.0f);
    }

    // W <= bound: around the present centroid c the cost lies below a sphere whose minimum is at c - (W c - goal) / bound.
    void approach(const float* goals, int m) {
        const float* w = t_.metric.data() + static_cast<std::ptrdiff_t>(m) * D * D;
        float targets[N * D];
        std::uint16_t found[N];
        for (int s = 0; s < N; ++s) {
            float present[D];
            for (int c = 0; c < D; ++c) {
                present[c] = t_.centroids[static_cast<std::ptrdiff_t>(c) * t_.num_centroids + code(s, m)];
            }
            for (int a = 0; a < D; ++a) {
                float slope = -goals[s * D + a];
                for (int b = 0; b < D; ++b) {
                    slope += w[a * D + b] * present[b];
                }
                targets[s * D + a] = present[a] - slope / t_.bound[m];
            }
        }
        find_nearest<D>(targets, N, t_.nearest.table(), found);
        for (int s = 0; s < N; ++s) {
            code(s, m) = found[s];
        }
    }

    const ShapingTables& t_;
    const float* y_;
    std::uint16_t* codes_;
    int num_subspaces_;
    float z_[N][NoiseShaping::kMaxRank];  // U e
    float error_[N][kMaxHeadDim];
    float own_[N][kMaxHeadDim];  // W y of each subspace
};

template <int D>
void improve(const ShapingTables& tables, int n, const float* y, std::uint16_t* codes) {
    if (n == NoiseShaping::kMaxVectors) {
        Improvement<D, NoiseShaping::kMaxVectors>(tables, y, codes).run();
        return;
    }
    for (int s = 0; s < n; ++s) {
        Improvement<D, 1>(tables, y + static_cast<std::ptrdiff_t>(s) * tables.head_dim, codes + s * (tables.head_dim / D)).run();
    }
}

inline EncodeKernels pick(int sub_dim) noexcept {
    switch (sub_dim) {
        case 1: return {find_nearest<1>, nullptr};
        case 2: return {find_nearest<2>, improve<2>};
        case 4: return {find_nearest<4>, improve<4>};
        default: return {find_nearest<8>, improve<8>};
    }
}
