#include "compare/report.h"

#include <fmt/format.h>

#include "compare/pictures.h"
#include "compare/progress.h"
#include "compare/result.h"
#include "report/html.h"
#include "report/page_pictures.h"

namespace vecinfer::cli {
namespace {

std::string facts_text(const Json& result) {
    const Json& settings = result["settings"];
    std::string text =
        fmt::format("{} ({}), {} threads, {} ({}), VecInfer {} ({}). Measured on {}: {} chunks of {} tokens, batches of {}.",
                    result["model"]["file"].get<std::string>(), result["model"]["architecture"].get<std::string>(),
                    settings["threads"].get<int>(), result["machine"]["cpu"].get<std::string>(),
                    result["machine"]["isa"].is_string() ? result["machine"]["isa"].get<std::string>() : "?",
                    result["vecinfer"]["version"].get<std::string>(), result["vecinfer"]["commit"].get<std::string>(),
                    result["text"]["file"].get<std::string>(), settings["chunks"].get<int>(), settings["ctx"].get<int>(),
                    settings["ubatch"].get<int>());
    text += result["calibration_text"].is_object()
                ? fmt::format(" Calibrated on {}: {} pieces of {} tokens.", result["calibration_text"]["file"].get<std::string>(),
                              settings["calibration_chunks"].get<int>(), settings["calibration_ctx"].get<int>())
                : " Nothing was calibrated in this run.";
    return text;
}

std::string number(const Json& value, std::string_view format) {
    return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "";
}

void add_tables(HtmlPage& page, const Json& result) {
    std::vector<std::vector<std::string>> costs = {{"cache", "bits", "effective bits", "bytes/token", "effective bytes/token",
                                                    "perplexity", "ratio", "KLD mean", "+/-", "KLD 99%", "KLD max", "same top-1",
                                                    "retrieval"}};
    std::vector<std::size_t> marked;
    for (const Json& row : result["rows"]) {
        std::vector<std::string> line = {row["name"].get<std::string>(), number(row["bits"], "{:.3f}"),
                                         number(row["effective_bits"], "{:.3f}"), number(row["bytes_per_token"], "{:.0f}"),
                                         number(row["effective_bytes_per_token"], "{:.0f}")};
        const Json& q = row["quality"];
        if (q.is_object()) {
            line.insert(line.end(),
                        {number(q["ppl"], "{:.3f}"), number(q["ppl_ratio"], "{:.4f}"), number(q["kld_mean"], "{:.5f}"),
                         number(q.value("kld_mean_err", Json()), "{:.5f}"), number(q["kld_p99"], "{:.4f}"),
                         number(q["kld_max"], "{:.3f}"), fmt::format("{:.1f}%", 100 * q["top1"].get<double>())});
        } else {
            line.insert(line.end(), 7, "");
        }
        const Json& r = row["retrieval"];
        line.push_back(r.is_object() ? fmt::format("{}/{}", r["exact"].get<int>(), r["total"].get<int>()) : "");
        if (row["pareto"] == true) {
            marked.push_back(costs.size());
        }
        costs.push_back(line);
    }
    page.table(costs, marked);
    page.paragraph(
        fmt::format("Marked rows: no other has both fewer effective bits and a lower mean KLD. Effective bits and bytes count "
                    "codes, scales, norms, window and codebooks at a context of {} tokens; bits and bytes/token are what "
                    "each further token adds. Perplexity and KL divergence (nats) are over the second half of each chunk.",
                    result["settings"]["footprint_ctx"].get<std::int64_t>()));
    if (const std::string note = sample_note(result); !note.empty()) {
        page.warning(note);
    }
    for (const Json& row : result["rows"]) {
        if (row["reason"].is_string()) {
            page.warning(fmt::format("{}: {}: {}", row["name"].get<std::string>(), row["status"].get<std::string>(),
                                     row["reason"].get<std::string>()));
        }
    }
}

void add_speed_table(HtmlPage& page, const Json& result) {
    const Json& depths = result["settings"]["speed_depths"];
    if (!depths.is_array()) {
        return;
    }
    std::vector<std::vector<std::string>> speeds = {{"tokens/s"}};
    for (const Json& depth : depths) {
        for (const char* kind : {"prompt", "decode"}) {
            speeds[0].push_back(fmt::format("{}, {} in cache", kind, depth.get<int>()));
        }
    }
    const Json& base = result["rows"][0];
    bool disturbed = false;
    for (const Json& row : result["rows"]) {
        if (!row["speed"].is_object()) {
            continue;
        }
        std::vector<std::string> line = {row["name"].get<std::string>()};
        for (const Json& depth : depths) {
            for (const char* kind : {"prompt", "decode"}) {
                const Json run = speed_at(row, kind, depth.get<int>());
                const Json own = speed_at(base, kind, depth.get<int>());
                const bool both = run.is_object() && own.is_object();
                line.push_back(!run.is_object() ? ""
                                                : fmt::format("{:.1f}{}", run["tps"].get<double>(),
                                                              both ? fmt::format(" ({:.2f}x)", run["tps"].get<double>() /
                                                                                                   own["tps"].get<double>())
                                                                   : ""));
            }
        }
        disturbed = disturbed || row["speed"]["quiet"] == false;
        speeds.push_back(line);
    }
    page.table(speeds);
    page.paragraph(
        "Medians of three; in parentheses against the f16 cache of the stock CPU backend in the same run. Below 1 a cache is "
        "slower than f16.");
    if (disturbed) {
        page.warning("Other programs were busy while some speeds were measured: do not trust them.");
    }
}

}  // namespace

std::string compare_report(const Json& result, std::string& missing) {
    HtmlPage page(fmt::format("KV cache schemes on {}", result["model"]["name"].get<std::string>()));
    PagePictures pictures(page, missing);
    page.paragraph(facts_text(result));
    page.heading("Bits and quality");
    pictures.add(pareto_picture(result),
                 "Lower and further left is better. Open marks: data-free codebooks. Caches that equal f16 are left out.");
    add_tables(page, result);
    if (result["settings"]["retrieval"].is_object()) {
        page.heading("Retrieval");
        page.paragraph(
            "Numbers of 5 to 7 digits are hidden in invented text. Rows: how many tokens the model has read; columns: where "
            "the number stood, 0 is the start. A cell counts answers that repeat the number exactly.");
        pictures.add(retrieval_picture(result), "Compare with the first map: what f16 misses is the model's own doing.");
    }
    if (result["settings"]["speed_depths"].is_array()) {
        page.heading("Speed");
        pictures.add(speed_picture(result),
                     "Bars span the fastest and the slowest of three runs. Dashed black: f16 of the stock CPU backend.");
        add_speed_table(page, result);
    }
    page.paragraph(fmt::format("The run took {}. Every figure is also in compare.json and compare.csv.",
                               duration_text(result["seconds"].get<double>())));
    return page.text();
}

}  // namespace vecinfer::cli
