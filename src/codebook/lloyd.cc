#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "codebook/kmeans.h"
#include "codec/vq/nearest.h"
#include "codec/vq/tables.h"

namespace vecinfer {
namespace {

// The chunks of a data set depend on its size alone, and their sums are added in order: any number of threads, one result.
constexpr std::int64_t kMinChunkRows = 2048;
constexpr std::int64_t kMaxChunks = 64;
constexpr double kLeastProgress = 1e-5;
constexpr int kSearchedInFull = 1024;  // up to so many centroids, sorting rows costs what it saves
constexpr int kFirstGuesses = 64;      // centroids that first guesses are made from
constexpr int kFinerGuesses = 8;       // times as many that the next are made from

struct Chunk {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    double error = 0;
    std::vector<double> sums;     // (num_centroids, sub_dim)
    std::vector<double> weights;  // num_centroids
};

struct AlignedDelete {
    void operator()(float* p) const noexcept { ::operator delete (p, std::align_val_t{64}); }
};
using AlignedFloats = std::unique_ptr<float[], AlignedDelete>;

AlignedFloats make_floats(std::size_t n) {
    return AlignedFloats(static_cast<float*>(::operator new (n * sizeof(float), std::align_val_t{64})));
}

/// work(thread) on up to num_threads threads, this one included.
template <class Work>
void in_parallel(int num_threads, const Work& work) {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(num_threads - 1));
    try {
        for (int i = 1; i < num_threads; ++i) {
            threads.emplace_back(work, i);
        }
    } catch (const std::system_error&) {
        // Fewer threads than asked for do the same work.
    }
    work(0);
}

/// Nearest centroids of rows that have a good guess already.
///
/// What is nearest to a row lies within twice the row's distance to the guessed centroid of that centroid, by the triangle
/// inequality. So rows go guess by guess, farthest first, a batch at a time: the centroids that close to the guess form a table
/// of their own, in the order of their numbers, and the search of that table finds what a search of all would, ties included.
class Refinement {
public:
    Refinement(const WeightedRows& data, NearestFn nearest, const float* table, int num_centroids, int searched)
        : data_(data), nearest_(nearest), table_(table), num_centroids_(num_centroids), searched_(searched) {}

    /// Rows by their guess; codes: n of them, guesses below num_centroids.
    void sort(std::span<const std::uint16_t> codes) {
        starts_.assign(static_cast<std::size_t>(num_centroids_) + 1, 0);
        for (const std::uint16_t code : codes) {
            ++starts_[code + 1];
        }
        std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
        order_.resize(codes.size());
        std::vector<std::int64_t> next = starts_;
        for (std::size_t i = 0; i < codes.size(); ++i) {
            order_[next[codes[i]]++] = static_cast<std::int64_t>(i);
        }
    }

    /// Of one guess.
    std::int64_t most_rows() const {
        std::int64_t most = 0;
        for (int i = 0; i < num_centroids_; ++i) {
            most = std::max(most, starts_[i + 1] - starts_[i]);
        }
        return most;
    }

    /// Memory of one thread; rows needs room for most_rows().
    struct Scratch {
        Scratch(int num_centroids, int sub_dim)
            : apart(num_centroids),
              numbers(num_centroids),
              table(make_floats(static_cast<std::size_t>(num_centroids + 64) * sub_dim)) {}

        std::vector<float> apart;  // squared distance of every centroid from the guess
        std::vector<int> numbers;  // of the centroids in the table
        AlignedFloats table;
        std::vector<std::pair<float, std::int64_t>> rows;  // squared distance from the guess, and which
    };

    /// codes and distances of the rows whose guess is `guess`.
    void refine(int guess, Scratch& scratch, std::uint16_t* codes, float* distances) const {
        const std::int64_t begin = starts_[guess];
        const std::int64_t end = starts_[guess + 1];
        if (begin == end) {
            return;
        }
        const int d = data_.sub_dim;
        float center[kMaxSubDim];
        for (int c = 0; c < d; ++c) {
            center[c] = table_[static_cast<std::size_t>(c) * searched_ + guess];
        }
        scratch.rows.clear();
        for (std::int64_t i = begin; i < end; ++i) {
            const float* x = data_.rows + order_[i] * d;
            float sum = 0;
            for (int c = 0; c < d; ++c) {
                sum += (x[c] - center[c]) * (x[c] - center[c]);
            }
            scratch.rows.emplace_back(sum, order_[i]);
        }
        std::sort(scratch.rows.begin(), scratch.rows.end(), std::greater<>());
        std::fill(scratch.apart.begin(), scratch.apart.end(), 0.0f);
        for (int c = 0; c < d; ++c) {
            const float* channel = table_ + static_cast<std::size_t>(c) * searched_;
            for (int k = 0; k < num_centroids_; ++k) {
                scratch.apart[k] += (channel[k] - center[c]) * (channel[k] - center[c]);
            }
        }
        std::iota(scratch.numbers.begin(), scratch.numbers.end(), 0);
        int count = num_centroids_;
        float rows[kBatch * kMaxSubDim];
        std::uint16_t found[kBatch];
        float found_distances[kBatch];
        for (std::size_t first = 0; first < scratch.rows.size(); first += kBatch) {
            const int n = static_cast<int>(std::min<std::size_t>(kBatch, scratch.rows.size() - first));
            count = narrow(scratch.rows[first].first, count, scratch);
            const int searched = searched_centroids(count);
            for (int i = 0; i < n; ++i) {
                std::copy_n(data_.rows + scratch.rows[first + i].second * d, d, rows + i * d);
            }
            nearest_(rows, n, scratch.table.get(), searched, found, found_distances);
            for (int i = 0; i < n; ++i) {
                codes[scratch.rows[first + i].second] = static_cast<std::uint16_t>(scratch.numbers[found[i]]);
                distances[scratch.rows[first + i].second] = found_distances[i];
            }
        }
    }

private:
    static constexpr int kBatch = 32;
    static constexpr int kMaxSubDim = 8;

    // Keeps those of `count` centroids that can be nearest to a row whose squared distance from the guess is `distance`. Squared
    // distances in floats are off by a few 2^-24 of them; the second term is for what underflows.
    int narrow(float distance, int count, Scratch& scratch) const {
        const float limit = 4.0001f * distance + 1e-35f;
        int kept = 0;
        for (int i = 0; i < count; ++i) {
            const int k = scratch.numbers[i];
            scratch.numbers[kept] = k;
            kept += scratch.apart[k] <= limit ? 1 : 0;
        }
        const int searched = searched_centroids(kept);
        for (int c = 0; c < data_.sub_dim; ++c) {
            const float* channel = table_ + static_cast<std::size_t>(c) * searched_;
            float* out = scratch.table.get() + static_cast<std::size_t>(c) * searched;
            for (int i = 0; i < kept; ++i) {
                out[i] = channel[scratch.numbers[i]];
            }
            std::fill(out + kept, out + searched, std::numeric_limits<float>::infinity());
        }
        return kept;
    }

    const WeightedRows& data_;
    NearestFn nearest_;
    const float* table_;  // layout (sub_dim, searched)
    int num_centroids_;
    int searched_;
    std::vector<std::int64_t> starts_;  // of each guess's rows in order_
    std::vector<std::int64_t> order_;
};

class Lloyd {
public:
    Lloyd(const WeightedRows& data, std::vector<float>& centroids)
        : data_(data),
          centroids_(centroids),
          num_centroids_(static_cast<int>(centroids.size()) / data.sub_dim),
          nearest_(nearest_kernel(data.sub_dim)),
          table_(make_floats(static_cast<std::size_t>(searched_centroids(num_centroids_)) * data.sub_dim)),
          codes_(static_cast<std::size_t>(data.n)),
          distances_(static_cast<std::size_t>(data.n)) {
        const std::int64_t count = std::clamp<std::int64_t>(data.n / kMinChunkRows, 1, kMaxChunks);
        chunks_.resize(static_cast<std::size_t>(count));
        for (std::int64_t i = 0; i < count; ++i) {
            Chunk& chunk = chunks_[static_cast<std::size_t>(i)];
            chunk.begin = data.n * i / count;
            chunk.end = data.n * (i + 1) / count;
            chunk.sums.resize(centroids.size());
            chunk.weights.resize(static_cast<std::size_t>(num_centroids_));
        }
    }

    /// Codes, distances and partial sums of every chunk.
    void assign(int num_threads) {
        const int threads = std::min(num_threads, static_cast<int>(chunks_.size()));
        if (num_centroids_ <= kSearchedInFull) {
            search(num_centroids_, threads);
        } else if (assigned_) {
            refine(num_centroids_, threads);
        } else {
            int count = kFirstGuesses;
            search(count, threads);
            while (count < num_centroids_) {
                const int finer = std::min(num_centroids_, count * kFinerGuesses);
                for (std::uint16_t& code : codes_) {
                    code = static_cast<std::uint16_t>(code * (finer / count));
                }
                count = finer;
                refine(count, threads);
            }
            assigned_ = true;
        }
        std::atomic<std::size_t> next{0};
        in_parallel(threads, [&](int) noexcept {
            for (std::size_t i = next++; i < chunks_.size(); i = next++) {
                add_up(chunks_[i]);
            }
        });
    }

    /// Weighted mean squared error per entry of the last assignment.
    double error() const noexcept {
        double error = 0;
        double weight = 0;
        for (const Chunk& chunk : chunks_) {
            error += chunk.error;
            for (double w : chunk.weights) {
                weight += w;
            }
        }
        return error / (weight * data_.sub_dim);
    }

    /// Moves centroids to the means of their rows. Returns how many had none and were moved to badly served rows.
    int update() {
        std::vector<int> empty;
        for (int i = 0; i < num_centroids_; ++i) {
            double weight = 0;
            for (const Chunk& chunk : chunks_) {
                weight += chunk.weights[static_cast<std::size_t>(i)];
            }
            if (weight == 0) {
                empty.push_back(i);
                continue;
            }
            for (int c = 0; c < data_.sub_dim; ++c) {
                double sum = 0;
                for (const Chunk& chunk : chunks_) {
                    sum += chunk.sums[index(i) + c];
                }
                centroids_[index(i) + c] = static_cast<float>(sum / weight);
            }
        }
        return empty.empty() ? 0 : repair(empty);
    }

private:
    std::size_t index(int centroid) const noexcept { return static_cast<std::size_t>(centroid) * data_.sub_dim; }
    const float* row(std::int64_t i) const noexcept { return data_.rows + i * data_.sub_dim; }
    double weight(std::int64_t i) const noexcept { return data_.weights == nullptr ? 1.0 : data_.weights[i]; }

    /// `count` centroids, evenly spread over their numbers; count divides num_centroids.
    void fill_table(int count) {
        const int searched = searched_centroids(count);
        std::fill_n(table_.get(), static_cast<std::size_t>(searched) * data_.sub_dim, std::numeric_limits<float>::infinity());
        for (int i = 0; i < count; ++i) {
            for (int c = 0; c < data_.sub_dim; ++c) {
                table_[static_cast<std::size_t>(c) * searched + i] = centroids_[index(i * (num_centroids_ / count)) + c];
            }
        }
    }

    /// Codes among `count` centroids.
    void search(int count, int threads) {
        fill_table(count);
        std::atomic<std::size_t> next{0};
        in_parallel(threads, [&](int) noexcept {
            for (std::size_t i = next++; i < chunks_.size(); i = next++) {
                nearest_(row(chunks_[i].begin), chunks_[i].end - chunks_[i].begin, table_.get(), searched_centroids(count),
                         &codes_[chunks_[i].begin], &distances_[chunks_[i].begin]);
            }
        });
    }

    /// The same, from guesses among them.
    void refine(int count, int threads) {
        fill_table(count);
        Refinement refinement(data_, nearest_, table_.get(), count, searched_centroids(count));
        refinement.sort(codes_);
        std::vector<Refinement::Scratch> scratch;
        for (int i = 0; i < threads; ++i) {
            scratch.emplace_back(count, data_.sub_dim);
            scratch.back().rows.reserve(static_cast<std::size_t>(refinement.most_rows()));
        }
        std::atomic<int> next{0};
        in_parallel(threads, [&](int thread) noexcept {
            for (int i = next++; i < count; i = next++) {
                refinement.refine(i, scratch[static_cast<std::size_t>(thread)], codes_.data(), distances_.data());
            }
        });
    }

    void add_up(Chunk& chunk) noexcept {
        std::fill(chunk.sums.begin(), chunk.sums.end(), 0.0);
        std::fill(chunk.weights.begin(), chunk.weights.end(), 0.0);
        chunk.error = 0;
        for (std::int64_t i = chunk.begin; i < chunk.end; ++i) {
            const double w = weight(i);
            double* sum = &chunk.sums[index(codes_[i])];
            for (int c = 0; c < data_.sub_dim; ++c) {
                sum[c] += w * row(i)[c];
            }
            chunk.weights[codes_[i]] += w;
            chunk.error += w * distances_[i];
        }
    }

    /// Gives empty centroids the rows with the largest weighted error, each distinct value once.
    int repair(const std::vector<int>& empty) {
        std::vector<std::int64_t> worst;
        for (std::int64_t i = 0; i < data_.n; ++i) {
            if (weight(i) * distances_[i] > 0) {
                worst.push_back(i);
            }
        }
        const auto worse = [&](std::int64_t a, std::int64_t b) {
            const double error_a = weight(a) * distances_[a];
            const double error_b = weight(b) * distances_[b];
            return error_a != error_b ? error_a > error_b : a < b;
        };
        // Rows of one value have one error, so some are looked at in vain; what is left over is done in the next iteration.
        const std::size_t count = std::min(worst.size(), 4 * empty.size() + 64);
        std::partial_sort(worst.begin(), worst.begin() + static_cast<std::ptrdiff_t>(count), worst.end(), worse);
        const float* last = nullptr;
        std::size_t moved = 0;
        for (std::size_t i = 0; i < count && moved < empty.size(); ++i) {
            const float* candidate = row(worst[i]);
            if (last != nullptr && std::equal(last, last + data_.sub_dim, candidate)) {
                continue;
            }
            std::copy_n(candidate, data_.sub_dim, &centroids_[index(empty[moved++])]);
            last = candidate;
        }
        return static_cast<int>(moved);
    }

    const WeightedRows& data_;
    std::vector<float>& centroids_;
    int num_centroids_;
    bool assigned_ = false;  // codes_ are those of the last assignment
    NearestFn nearest_;
    AlignedFloats table_;
    std::vector<std::uint16_t> codes_;
    std::vector<float> distances_;
    std::vector<Chunk> chunks_;
};

}  // namespace

int thread_count(int requested) noexcept {
    return requested > 0 ? requested : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

LloydResult lloyd(const WeightedRows& data, std::vector<float>& centroids, int max_iterations, int num_threads,
                  const KMeansStep& step) {
    Lloyd state(data, centroids);
    LloydResult result;
    for (int iteration = 0; iteration < max_iterations; ++iteration) {
        state.assign(num_threads);
        result.errors.push_back(state.error());
        const int moved = state.update();
        if (step && !step(iteration + 1)) {
            result.stopped = true;
            return result;
        }
        const bool settled = iteration > 0 && result.errors[iteration] > result.errors[iteration - 1] * (1 - kLeastProgress);
        if (moved == 0 && (settled || result.errors.back() == 0)) {
            break;
        }
    }
    return result;
}

}  // namespace vecinfer
