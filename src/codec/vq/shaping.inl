// Noise shaping of N vectors at once, so that their chains of dependent operations overlap. Included by encode_<isa>.cc inside an
// anonymous namespace after it has defined
//   least_costs<D, N>(goals, table, bias, codes)  codes[s] <- the code with the least bias - 2 goal . c of goal s, as a
//                                                 LeastCostFn finds it
//   find_nearest<D>
//
// The codes must be the same on every ISA, so the order of all sums over channels and directions is fixed: sums over directions
// run one direction after the other, with channels in the lanes, and updates over directions have directions in the lanes.

template <int D, int N>
class Improvement {
public:
    Improvement(const ShapingTables& tables, const float* y, std::uint16_t* codes)
        : t_(tables),
          num_subspaces_(tables.head_dim / D),
          head_dim_(tables.head_dim),
          rank_(tables.rank),
          num_centroids_(tables.num_centroids),
          centroids_(tables.centroids),
          by_channel_(tables.by_channel.data()),
          y_(y),
          codes_(codes) {}

    void run() {
        for (int m = 0; m < num_subspaces_; ++m) {
            for (int s = 0; s < N; ++s) {
                set_error(s, m, codes_[s * num_subspaces_ + m]);
                set_own(s, m);
            }
        }
        sum_errors();
        add_error(0, -1.0f);
        const int last = ShapingTables::kPasses * num_subspaces_ - 1;
        for (int visit = 0; visit <= last; ++visit) {
            const int m = visit % num_subspaces_;
            choose(m);
            if (visit < last) {
                add_error(m, 1.0f);
                add_error((m + 1) % num_subspaces_, -1.0f);
            }
        }
    }

private:
    void set_error(int s, int m, int code) {
        const float* centroid = centroids_ + code;
        for (int c = 0; c < D; ++c) {
            error_[s][m * D + c] = centroid[static_cast<std::ptrdiff_t>(c) * num_centroids_] - y_[s * head_dim_ + m * D + c];
        }
    }

    void set_own(int s, int m) {
        const float* w = t_.metric.data() + static_cast<std::ptrdiff_t>(m) * D * D;  // symmetric
        const float* y = y_ + s * head_dim_ + m * D;
        Channels<D> own = load_lanes<Channels<D>>(w) * y[0];
        for (int b = 1; b < D; ++b) {
            own += load_lanes<Channels<D>>(w + b * D) * y[b];
        }
        store_lanes(own_[s] + m * D, own);
    }

    void sum_errors() {
        for (int r = 0; r < rank_; r += 8) {
            Directions z[N] = {};
            for (int d = 0; d < head_dim_; ++d) {
                const auto u = load_lanes<Directions>(by_channel_ + static_cast<std::ptrdiff_t>(d) * rank_ + r);
                for (int s = 0; s < N; ++s) {
                    z[s] += u * error_[s][d];
                }
            }
            for (int s = 0; s < N; ++s) {
                store_lanes(z_[s] + r, z[s]);
            }
        }
    }

    // z += sign * U e of subspace m.
    void add_error(int m, float sign) {
        const float* u = by_channel_ + static_cast<std::ptrdiff_t>(m) * D * rank_;
        for (int r = 0; r < rank_; r += 8) {
            Directions z[N];
            for (int s = 0; s < N; ++s) {
                z[s] = load_lanes<Directions>(z_[s] + r);
            }
            for (int c = 0; c < D; ++c) {
                const auto direction = load_lanes<Directions>(u + c * rank_ + r) * sign;
                for (int s = 0; s < N; ++s) {
                    z[s] += direction * error_[s][m * D + c];
                }
            }
            for (int s = 0; s < N; ++s) {
                store_lanes(z_[s] + r, z[s]);
            }
        }
    }

    // The least cost in subspace m, whose errors z lacks.
    void choose(int m) {
        // Half the slope of the cost at centroid 0 is -goal: cost(c) = c^T W c - 2 goal . c + const.
        const float* u = t_.by_rank.data() + static_cast<std::ptrdiff_t>(m) * rank_ * D;
        Channels<D> others[N] = {};
        for (int r = 0; r < rank_; ++r) {
            const auto direction = load_lanes<Channels<D>>(u + r * D);
            for (int s = 0; s < N; ++s) {
                others[s] += direction * z_[s][r];
            }
        }
        Channels<D> goals[N];
        for (int s = 0; s < N; ++s) {
            goals[s] = load_lanes<Channels<D>>(own_[s] + m * D) - others[s];
        }
        std::uint16_t found[N];
        if (t_.bias != nullptr) {
            least_costs<D, N>(goals, t_.scan.table(m), t_.bias.get() + static_cast<std::ptrdiff_t>(m) * num_centroids_, found);
        } else {
            approach(goals, m, found);
        }
        for (int s = 0; s < N; ++s) {
            codes_[s * num_subspaces_ + m] = found[s];
            set_error(s, m, found[s]);
        }
    }

    // W <= bound: around the present centroid c the cost lies below a sphere whose minimum is at c - (W c - goal) / bound.
    void approach(const Channels<D>* goals, int m, std::uint16_t* found) {
        const float* w = t_.metric.data() + static_cast<std::ptrdiff_t>(m) * D * D;
        float targets[N * D];
        for (int s = 0; s < N; ++s) {
            const float* centroid = centroids_ + codes_[s * num_subspaces_ + m];
            Channels<D> slope = -goals[s];
            Channels<D> present;
            for (int b = 0; b < D; ++b) {
                present[b] = centroid[static_cast<std::ptrdiff_t>(b) * num_centroids_];
                slope += load_lanes<Channels<D>>(w + b * D) * present[b];
            }
            store_lanes(targets + s * D, present - slope / t_.bound[m]);
        }
        find_nearest<D>(targets, N, t_.nearest.table(), found);
    }

    const ShapingTables& t_;
    const int num_subspaces_;
    const int head_dim_;
    const int rank_;
    const int num_centroids_;
    const float* const centroids_;
    const float* const by_channel_;
    const float* const y_;
    std::uint16_t* const codes_;
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
