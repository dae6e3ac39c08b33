#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <new>
#include <system_error>
#include <thread>

#include "codebook/kmeans.h"
#include "codec/vq/nearest.h"
#include "codec/vq/tables.h"

namespace vecinfer {
namespace {

// The chunks of a data set depend on its size alone, and their sums are added in order: any number of threads, one result.
constexpr std::int64_t kMinChunkRows = 2048;
constexpr std::int64_t kMaxChunks = 64;
constexpr double kLeastProgress = 1e-5;

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

class Lloyd {
public:
    Lloyd(const WeightedRows& data, std::vector<float>& centroids)
        : data_(data),
          centroids_(centroids),
          num_centroids_(static_cast<int>(centroids.size()) / data.sub_dim),
          searched_(searched_centroids(num_centroids_)),
          nearest_(nearest_kernel(data.sub_dim)),
          table_(static_cast<float*>(
              ::operator new (static_cast<std::size_t>(searched_) * data.sub_dim * sizeof(float), std::align_val_t{64}))),
          codes_(static_cast<std::size_t>(data.n)),
          distances_(static_cast<std::size_t>(data.n)) {
        std::fill_n(table_.get(), static_cast<std::size_t>(searched_) * data.sub_dim, std::numeric_limits<float>::infinity());
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
        for (int i = 0; i < num_centroids_; ++i) {
            for (int c = 0; c < data_.sub_dim; ++c) {
                table_[static_cast<std::size_t>(c) * searched_ + i] = centroids_[index(i) + c];
            }
        }
        std::atomic<std::size_t> next{0};
        const auto work = [&]() noexcept {
            for (std::size_t i = next++; i < chunks_.size(); i = next++) {
                assign(chunks_[i]);
            }
        };
        std::vector<std::jthread> threads;
        const std::size_t wanted = std::min(static_cast<std::size_t>(num_threads), chunks_.size()) - 1;
        threads.reserve(wanted);
        try {
            while (threads.size() < wanted) {
                threads.emplace_back(work);
            }
        } catch (const std::system_error&) {
            // Fewer threads than asked for do the same work.
        }
        work();
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

    void assign(Chunk& chunk) noexcept {
        std::fill(chunk.sums.begin(), chunk.sums.end(), 0.0);
        std::fill(chunk.weights.begin(), chunk.weights.end(), 0.0);
        chunk.error = 0;
        nearest_(row(chunk.begin), chunk.end - chunk.begin, table_.get(), searched_, &codes_[chunk.begin],
                 &distances_[chunk.begin]);
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
    int searched_;
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
