#include "bit_search.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "interruption.h"

namespace vecinfer::plugin {

namespace {

namespace fs = std::filesystem;

// A short window, so that most of a chunk is read from codes.
constexpr int kRecent = 16;

// A sidecar file that the plugin is pointed at; gone when this object is.
class ScratchFile {
public:
    static Result<ScratchFile> create() {
        std::error_code error;
        std::string name = (fs::temp_directory_path(error) / "vecinfer-bits-XXXXXX").string();
        const auto held = hold_interrupts();
        const int fd = error ? -1 : mkstemp(name.data());
        if (fd < 0) {
            return Status{ErrorCode::io_error, fmt::format("temporary folder: cannot write {}", name)};
        }
        close(fd);
        set_scratch_file(name);
        ScratchFile out;
        out.path_ = name;
        return out;
    }
    ScratchFile(ScratchFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
    ScratchFile& operator=(ScratchFile&&) = delete;
    ~ScratchFile() {
        if (!path_.empty()) {
            const auto held = hold_interrupts();
            unlink(path_.c_str());
            set_scratch_file("");
        }
    }
    const std::string& path() const { return path_; }

private:
    ScratchFile() = default;
    std::string path_;
};

class Search {
public:
    Search(const BitSearchOptions& options, const Sidecar& sidecar, std::vector<Divergence>& divergences, std::string scratch)
        : options_(options), facts_(sidecar), divergences_(divergences), scratch_(std::move(scratch)) {}

    /// trained[c]: all layers with candidate c for keys and values.
    std::vector<std::vector<LayerCalibration>> trained;

    Sidecar with(const Scheme& scheme, const std::vector<LayerChoice>& choices) const {
        Sidecar out = facts_;
        out.scheme = scheme;
        out.layers.clear();
        for (const LayerChoice& choice : choices) {
            out.layers.push_back(combine(choice));
        }
        return out;
    }

    /// Of every kind of passage.
    Result<std::vector<double>> measure(const Sidecar& sidecar) const {
        {
            const auto held = hold_interrupts();
            if (Status status = save_sidecar(sidecar, scratch_); !status.ok()) {
                return status;
            }
        }
        Scheme scheme = sidecar.scheme;
        scheme.window.recent = std::min(scheme.window.recent, kRecent);
        std::vector<double> klds;
        for (Divergence& divergence : divergences_) {
            const Result<double> kld = divergence.measure(to_long_string(scheme), scratch_);
            if (!kld.ok()) {
                return kld.status();
            }
            klds.push_back(kld.value());
        }
        return klds;
    }

    /// Divergences with one layer packed and all others in f16, added up.
    Result<double> measure_layer(const LayerChoice& choice) const {
        Scheme scheme = facts_.scheme;
        scheme.key = options_.candidates[choice.key];
        scheme.value = options_.candidates[choice.value];
        scheme.layers.clear();
        const LayerOverride exact{.f16 = true, .key = f16_scheme().key, .value = f16_scheme().value};
        const int last = trained.front().back().shape.layer;
        for (const auto& [begin, end] : {std::pair(0, choice.layer - 1), std::pair(choice.layer + 1, last)}) {
            if (begin <= end) {
                scheme.layers.push_back(exact);
                scheme.layers.back().first = begin;
                scheme.layers.back().last = end;
            }
        }
        const Result<std::vector<double>> klds = measure(with(scheme, {choice}));
        return klds.ok() ? Result<double>(std::accumulate(klds->begin(), klds->end(), 0.0)) : klds.status();
    }

private:
    LayerCalibration combine(const LayerChoice& choice) const {
        const auto of_layer = [&](int candidate) -> const LayerCalibration& {
            const auto& layers = trained[candidate];
            return *std::find_if(layers.begin(), layers.end(),
                                 [&](const LayerCalibration& l) { return l.shape.layer == choice.layer; });
        };
        LayerCalibration out = of_layer(choice.key);
        out.value_codebooks = of_layer(choice.value).value_codebooks;
        out.value_matrix = of_layer(choice.value).value_matrix;
        return out;
    }

    const BitSearchOptions& options_;
    const Sidecar& facts_;
    std::vector<Divergence>& divergences_;
    std::string scratch_;
};

// What a side of a layer costs over the widest candidate, from measurements whose other side has the widest.
Result<LayerCosts> layer_costs(const Search& search, const LayerShape& shape, int num_candidates,
                               const std::function<void()>& tick) {
    const int widest = num_candidates - 1;
    LayerCosts out{shape, std::vector<double>(num_candidates), std::vector<double>(num_candidates)};
    const auto measure = [&](int key, int value) {
        tick();
        return search.measure_layer({shape.layer, key, value});
    };
    const Result<double> base = measure(widest, widest);
    if (!base.ok()) {
        return base.status();
    }
    for (int c = 0; c < widest; ++c) {
        const Result<double> key = measure(c, widest);
        const Result<double> value = key.ok() ? measure(widest, c) : key;
        if (!value.ok()) {
            return value.status();
        }
        out.key[c] = key.value() - base.value();
        out.value[c] = value.value() - base.value();
    }
    return out;
}

}  // namespace

Result<BitSearchResult> search_bits(ModelSession& session, const Calibrator& calibrator, const BitSearchOptions& options,
                                    Sidecar& sidecar, const std::function<void(const char* stage, double share)>& progress) {
    const int num_candidates = static_cast<int>(options.candidates.size());
    Result<ScratchFile> scratch = ScratchFile::create();
    if (!scratch.ok()) {
        return scratch.status();
    }
    std::vector<Divergence> divergences;
    for (const std::vector<Passage>* passages : {&options.text, &options.recall}) {
        if (passages->empty()) {
            continue;
        }
        Result<Divergence> divergence = Divergence::create(session, *passages);
        if (!divergence.ok()) {
            return divergence.status();
        }
        divergences.push_back(std::move(divergence).value());
    }
    Search search(options, sidecar, divergences, scratch->path());
    for (const CodecSpec& spec : options.candidates) {
        Result<std::vector<LayerCalibration>> layers = calibrator.finish_with(spec, spec, [&](double share) {
            progress("training codebooks", (static_cast<double>(search.trained.size()) + share) / num_candidates);
            return true;
        });
        if (!layers.ok()) {
            return layers.status();
        }
        search.trained.push_back(std::move(layers).value());
    }

    BitSearchResult out;
    const std::size_t runs = search.trained.front().size() * (2 * static_cast<std::size_t>(num_candidates) - 1);
    std::size_t done = 0;
    for (const LayerCalibration& layer : search.trained.front()) {
        const Result<LayerCosts> costs = layer_costs(search, layer.shape, num_candidates, [&] {
            progress("measuring layers", static_cast<double>(done++) / static_cast<double>(runs));
        });
        if (!costs.ok()) {
            return costs.status();
        }
        out.costs.push_back(costs.value());
    }
    progress("measuring layers", 1);
    Result<std::vector<LayerChoice>> choices = allocate_bits(options.candidates, out.costs, options.target_bits);
    if (!choices.ok()) {
        return choices.status();
    }
    out.choices = std::move(choices).value();
    out.code_bits = mean_code_bits(options.candidates, out.costs, out.choices);
    const Sidecar chosen = search.with(with_choices(sidecar.scheme, options.candidates, out.choices), out.choices);
    const Result<std::vector<double>> klds = search.measure(chosen);
    if (!klds.ok()) {
        return klds.status();
    }
    out.kld = klds->front();
    out.recall_kld = options.recall.empty() ? 0 : klds->back();
    sidecar = chosen;
    return out;
}

}  // namespace vecinfer::plugin
