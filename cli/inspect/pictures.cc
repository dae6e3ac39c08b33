#include <fmt/format.h>

#include <algorithm>

#include "inspect/inspection.h"

namespace vecinfer::cli {
namespace {

constexpr std::string_view kAxes =
    "set grid lc rgb '#e4e4e4' lt 1\nset border 3\nset tics nomirror\nset xlabel 'layer'\nset key font ',11'\n";

// Two plots side by side, the key of the second to its right.
std::string panel(bool left, std::string_view title) {
    return fmt::format(
        "set lmargin at screen {}\nset rmargin at screen {}\nset tmargin at screen 0.9\nset bmargin at screen 0.17\nset title {} "
        "font "
        "',13'\n",
        left ? 0.06 : 0.44, left ? 0.375 : 0.755, gnuplot_string(title));
}

struct Errors {
    std::string name;
    std::string side;
    std::string key;
    std::string title;
};

}  // namespace

std::optional<Picture> map_picture(const Json& inspection) {
    const Json& keys = inspection["detail"]["keys"];
    if (keys.empty()) {
        return std::nullopt;
    }
    constexpr int kColumns = 3;
    constexpr double kBrightest = 6;
    const int lines = (static_cast<int>(keys.size()) + kColumns - 1) / kColumns;
    const int height = 190 * lines + 30;
    const double unit = 1.0 / height;
    std::string script = fmt::format(
        "set multiplot layout {},{} margins 0.055,0.9,{},{} spacing 0.05,{}\nunset key\nset palette defined (0 '#f7fbff', 1 "
        "'#c6dbef', "
        "2 '#6baed6', 3 '#2171b5', 4.5 '#d55e00', 6 '#7f0000')\nset cbrange [0:{}]\nunset colorbox\nset tics scale 0.4 font "
        "',10'\nset "
        "title font ',12' offset 0,-0.7\nset border 15 lc rgb '#888888'\n",
        lines, kColumns, 40 * unit, 1 - 24 * unit, 56 * unit, kBrightest);
    for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto map = keys[i]["map"].get<std::vector<double>>();
        const int rows = keys[i]["map_tokens"];
        const auto columns = map.size() / static_cast<std::size_t>(std::max(rows, 1));
        double average = 0;
        for (const double value : map) {
            average += value / static_cast<double>(map.size());
        }
        script += fmt::format("$map{} << EOD\n", i);
        for (std::size_t at = 0; at < map.size(); ++at) {
            script += fmt::format("{:.3g}{}", average > 0 ? map[at] / average : 0, (at + 1) % columns == 0 ? "\n" : " ");
        }
        script += fmt::format("EOD\nset xrange [-0.5:{}]\nset yrange [-0.5:{}]\nset title {}\n",
                              static_cast<double>(columns) - 0.5, rows - 0.5,
                              gnuplot_string(fmt::format("{}  (kurtosis {:.1f})", keys[i]["transform"].get<std::string>(),
                                                         keys[i]["kurtosis"].get<double>())));
        script += fmt::format("set ytics ('0' -0.5, '{}' {})\n", inspection["tokens"].get<int>(), rows - 0.5);
        script += i + 1 == keys.size() ? fmt::format(
                                             "set colorbox user origin 0.925,{} size 0.015,{}\nset cblabel 'over the average' "
                                             "font ',11'\nset cbtics scale 0.4 font ',10'\n",
                                             40 * unit, 1 - 64 * unit)
                                       : "";
        script += fmt::format("plot $map{} matrix with image\n", i);
    }
    script += "unset multiplot";
    return Picture{.name = "map", .width = 1000, .height = height, .script = script};
}

std::optional<Picture> kurtosis_picture(const Json& inspection) {
    const Json& layers = inspection["layers"];
    if (layers.empty()) {
        return std::nullopt;
    }
    // A transform has the same colour on both sides.
    const Json& known = layers.front()["keys"]["spread"];
    std::string script =
        "set multiplot\n" + std::string(kAxes) + "set logscale y\nset format y '%g'\nset ytics (1,2,3,5,10,20,50,100)\n";
    for (const char* side : {"keys", "values"}) {
        const bool left = std::string_view(side) == "keys";
        std::string plots;
        for (std::size_t i = 0; i < known.size(); ++i) {
            std::string points;
            for (const Json& layer : layers) {
                for (const Json& spread : layer[side]["spread"]) {
                    if (spread["transform"] == known[i]["transform"]) {
                        points += fmt::format("{} {}\n", layer["layer"].get<int>(), spread["kurtosis"].get<double>());
                    }
                }
            }
            if (points.empty()) {
                points = "NaN NaN\n";  // values are not smoothed; the key lists all
            }
            script += fmt::format("${}{} << EOD\n{}EOD\n", side, i, points);
            plots += fmt::format("${}{} using 1:2 with linespoints lc rgb '{}' lw 1.8 pt {} ps 0.6{} title {}, ", side, i,
                                 series_colour(i), 4 + i % 8, i >= 4 ? " dt 2" : "",
                                 gnuplot_string(known[i]["transform"].get<std::string>()));
        }
        script += panel(left, left ? "kurtosis of keys" : "kurtosis of values");
        script += left ? "unset key\n" : "set key at screen 0.995,0.9 right top reverse Left samplen 2\n";
        script += "plot " + plots + "3 lc rgb '#999999' dt 3 title 'normal'\n";
    }
    script += "unset multiplot";
    return Picture{.name = "kurtosis", .width = 1000, .height = 400, .script = script};
}

std::optional<Picture> error_picture(const Json& inspection) {
    const Json& layers = inspection["layers"];
    if (layers.empty()) {
        return std::nullopt;
    }
    const auto has = [&](const char* side, const char* key) {
        return std::any_of(layers.begin(), layers.end(), [&](const Json& layer) { return layer[side].contains(key); });
    };
    const bool scores = has("keys", "score_rms");
    if (!has("keys", "relative_mse")) {
        return std::nullopt;
    }
    std::vector<Errors> all = {{"kmse", "keys", "relative_mse", "keys"}, {"vmse", "values", "relative_mse", "values"}};
    if (scores) {
        all.push_back({"score", "keys", "score_rms", "score error"});
    }
    std::string script = "set multiplot\n" + std::string(kAxes) + "set yrange [0:*]\n";
    for (const Errors& errors : all) {
        std::string means;
        script += fmt::format("${}heads << EOD\n", errors.name);
        for (const Json& layer : layers) {
            const auto values = layer[errors.side].value(errors.key, std::vector<double>());
            if (values.empty()) {
                continue;  // this layer stays in f16
            }
            double sum = 0;
            for (const double value : values) {
                script += fmt::format("{} {}\n", layer["layer"].get<int>(), value);
                sum += value;
            }
            means += fmt::format("{} {}\n", layer["layer"].get<int>(), sum / static_cast<double>(values.size()));
        }
        script += fmt::format("EOD\n${}mean << EOD\n{}EOD\n", errors.name, means);
    }
    const auto series = [](const std::string& name, const std::string& title, std::size_t colour) {
        return fmt::format(
            "${0}heads using 1:2 with points pt 7 ps 0.5 lc rgb '{2}' title '{1}, each head', ${0}mean using 1:2 with "
            "lines lw 2 lc rgb '{2}' title '{1}, mean'",
            name, title, series_colour(colour));
    };
    if (scores) {
        script += panel(true, "score error (root mean square)") + "unset key\nplot " + series("score", "keys", 1) + "\n";
    }
    script += panel(false, "relative squared error") + "set key at screen 0.995,0.9 right top reverse Left samplen 2\nplot " +
              series("kmse", "keys", 1) + ", " + series("vmse", "values", 0) + "\nunset multiplot";
    return Picture{.name = "errors", .width = 1000, .height = 400, .script = script};
}

std::optional<Picture> usage_picture(const Json& inspection) {
    const Json& layers = inspection["layers"];
    std::string script = "set multiplot\n" + std::string(kAxes);
    bool any = false;
    for (const char* side : {"keys", "values"}) {
        std::string points;
        for (const Json& layer : layers) {
            if (!layer[side].contains("code_usage")) {
                continue;
            }
            for (const Json& usage : layer[side]["code_usage"]) {
                points += fmt::format("{} {} {}\n", layer["layer"].get<int>(), usage["entropy_bits"].get<double>(),
                                      100 * usage["dead"].get<double>() / usage["num_centroids"].get<double>());
                any = true;
            }
        }
        script += fmt::format("${} << EOD\n{}EOD\n", side, points.empty() ? "NaN NaN NaN\n" : points);
    }
    if (!any) {
        return std::nullopt;  // scalar codecs
    }
    const auto both = [](int column) {
        return fmt::format(
            "plot $keys using 1:{0} with points pt 7 ps 0.6 lc rgb '{1}' title 'keys, each head', $values using 1:{0} with "
            "points pt 6 ps 0.7 lc rgb '{2}' title 'values, each head'\n",
            column, series_colour(1), series_colour(0));
    };
    script += panel(true, "entropy of the codes (bits)") + "unset key\n" + both(2);
    script += panel(false, "centroids never used (%)") +
              "set yrange [0:*]\nset key at screen 0.995,0.9 right top reverse Left samplen 2\n" + both(3) + "unset multiplot";
    return Picture{.name = "usage", .width = 1000, .height = 360, .script = script};
}

}  // namespace vecinfer::cli
