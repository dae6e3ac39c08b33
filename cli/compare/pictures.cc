#include "compare/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace vecinfer::cli {
namespace {

// Divergences below this, which may even be negative, are noise: they are drawn here, as the axis is logarithmic.
constexpr double kSmallestKld = 1e-4;

std::string family_of(const Json& row) {
    if (row["kind"] == "peer") {
        return "llama.cpp cache types";
    }
    const auto& name = row["name"].get_ref<const std::string&>();
    return name.substr(0, name.find_first_of(":@,"));
}

struct Point {
    std::string name;
    std::string family;
    double bits;
    double kld;
    bool filled;     // false: data-free codebooks
    double label_y;  // log10 of the KLD at which the label stands
};

// Labels stand to the right of their points and move down where they would cover another label or point.
void place_labels(std::vector<Point>& points, double x_span, double y_span) {
    std::vector<Point*> order;
    for (Point& point : points) {
        point.label_y = std::log10(point.kld);
        order.push_back(&point);
    }
    std::sort(order.begin(), order.end(), [](const Point* a, const Point* b) { return a->label_y > b->label_y; });
    const double line = 0.04 * y_span;
    const auto end_of = [&](const Point& point) {
        return point.bits + (0.012 * static_cast<double>(point.name.size()) + 0.02) * x_span;
    };
    for (std::size_t i = 0; i < order.size(); ++i) {
        Point& own = *order[i];
        const auto collides = [&](const Point& other, bool is_placed) {
            const bool over_point = other.bits > own.bits + 0.005 * x_span && other.bits < end_of(own) &&
                                    std::fabs(std::log10(other.kld) - own.label_y) < 0.7 * line;
            const bool over_label = is_placed && other.bits < end_of(own) && own.bits < end_of(other) &&
                                    std::fabs(other.label_y - own.label_y) < 0.99 * line;
            return over_point || over_label;
        };
        constexpr int kMostSteps = 60;
        for (int step = 0; step < kMostSteps; ++step) {
            bool moved = false;
            for (std::size_t j = 0; j < order.size(); ++j) {
                if (j != i && collides(*order[j], j < i)) {
                    own.label_y -= 0.25 * line;
                    moved = true;
                    break;
                }
            }
            if (!moved) {
                break;
            }
        }
    }
}

std::vector<const Json*> rows_with(const Json& result, const char* part) {
    std::vector<const Json*> rows;
    for (const Json& row : result["rows"]) {
        if (row[part].is_object()) {
            rows.push_back(&row);
        }
    }
    return rows;
}

std::string_view series_ink(std::size_t index, const Json& row) {
    return row["kind"] == "base" ? "#000000" : series_colour(index - 1);
}

std::string series_style(std::size_t index, const Json& row) {
    const std::string_view dashes = row["kind"] == "base" ? " dt 2" : row["kind"] == "peer" ? " dt 3" : "";
    return fmt::format("lc rgb '{}' lw 2 pt {} ps 0.8{}", series_ink(index, row), 5 + 2 * (index % 5), dashes);
}

}  // namespace

std::optional<Picture> pareto_picture(const Json& result) {
    std::vector<Point> points;
    std::vector<std::string> families;
    double most_bits = 0;
    double fewest_bits = 100;
    double worst = 0;
    double best = 1;
    for (const Json* row : rows_with(result, "quality")) {
        const bool is_f16 = (*row)["scheme"].is_string() && (*row)["scheme"].get_ref<const std::string&>().starts_with("f16");
        if ((*row)["kind"] == "base" || is_f16 || !(*row)["effective_bits"].is_number()) {
            continue;  // nothing is lost there
        }
        const double bits = (*row)["effective_bits"];
        const double kld = std::max((*row)["quality"]["kld_mean"].get<double>(), kSmallestKld);
        points.push_back({(*row)["name"], family_of(*row), bits, kld, (*row)["codebooks"] != "data-free", 0});
        if (std::find(families.begin(), families.end(), points.back().family) == families.end()) {
            families.push_back(points.back().family);
        }
        most_bits = std::max(most_bits, bits);
        fewest_bits = std::min(fewest_bits, bits);
        worst = std::max(worst, kld);
        best = std::min(best, kld);
    }
    if (points.empty()) {
        return std::nullopt;
    }
    const double pad = std::max(0.5, 0.12 * (most_bits - fewest_bits));
    const double x_low = std::max(0.0, fewest_bits - 0.5 * pad);
    const double x_high = most_bits + 2.5 * pad;
    const double y_low = std::pow(10, std::log10(best) - 0.35);
    const double y_high = std::pow(10, std::log10(worst) + 0.25);
    place_labels(points, x_high - x_low, std::log10(y_high / y_low));

    std::string script = fmt::format(
        "set logscale y\nset xrange [{}:{}]\nset yrange [{}:{}]\nset xlabel 'effective bits per value (everything counted)'\n"
        "set ylabel 'mean KL divergence to f16 (nats)'\nset grid lc rgb '#e4e4e4' lt 1\nset key outside right top reverse Left "
        "samplen 2 font ',11'\nset border 3\nset tics nomirror\nset format y '%g'\nset mytics 10\n",
        x_low, x_high, y_low, y_high);
    std::vector<const Point*> front;
    for (const Json& row : result["rows"]) {
        const auto found = std::find_if(points.begin(), points.end(), [&](const Point& p) { return p.name == row["name"]; });
        if (row["pareto"] == true && found != points.end()) {
            front.push_back(&*found);
        }
    }
    std::sort(front.begin(), front.end(), [](const Point* a, const Point* b) { return a->bits < b->bits; });
    script += "$front << EOD\n";
    for (const Point* point : front) {
        script += fmt::format("{} {}\n", point->bits, point->kld);
    }
    script += "EOD\n";
    for (std::size_t f = 0; f < families.size(); ++f) {
        for (const bool filled : {true, false}) {
            script += fmt::format("$family{}{} << EOD\n", f, filled ? "filled" : "open");
            for (const Point& point : points) {
                if (point.family == families[f] && point.filled == filled) {
                    script += fmt::format("{} {}\n", point.bits, point.kld);
                }
            }
            script += "EOD\n";
        }
    }
    for (const Point& point : points) {
        const double y = std::pow(10, point.label_y);
        const double x = point.bits + 0.014 * (x_high - x_low);
        script += fmt::format("set label {} at {},{} left font ',11' tc rgb '#333333'\n", gnuplot_string(point.name), x, y);
        if (std::fabs(point.label_y - std::log10(point.kld)) > 1e-9) {
            script += fmt::format("set arrow from {},{} to {},{} nohead lc rgb '#bbbbbb' lw 0.7\n", point.bits, point.kld,
                                  x - 0.003 * (x_high - x_low), y);
        }
    }
    std::string plots;
    if (front.size() > 1) {
        plots += "$front using 1:2 with fsteps lc rgb '#999999' dt 2 lw 1.5 title 'Pareto front'";
    }
    constexpr int kFilled[] = {7, 5, 9, 13, 11};
    constexpr int kOpen[] = {6, 4, 8, 12, 10};
    for (std::size_t f = 0; f < families.size(); ++f) {
        for (const bool filled : {true, false}) {
            const bool any = std::any_of(points.begin(), points.end(),
                                         [&](const Point& p) { return p.family == families[f] && p.filled == filled; });
            if (!any) {
                continue;
            }
            plots += fmt::format("{}$family{}{} using 1:2 with points pt {} ps 1.2 lw 1.8 lc rgb '{}' title {}",
                                 plots.empty() ? "" : ", ", f, filled ? "filled" : "open", filled ? kFilled[f % 5] : kOpen[f % 5],
                                 families[f] == "llama.cpp cache types" ? "#4d4d4d" : series_colour(f),
                                 gnuplot_string(families[f] + (filled ? "" : ", data-free")));
        }
    }
    return Picture{.name = "pareto", .width = 960, .height = 520, .script = script + "plot " + plots};
}

std::optional<Picture> retrieval_picture(const Json& result) {
    const std::vector<const Json*> rows = rows_with(result, "retrieval");
    if (rows.empty()) {
        return std::nullopt;
    }
    std::set<double> depths;
    std::set<int> lengths;
    for (const Json* row : rows) {
        for (const Json& cell : (*row)["retrieval"]["cells"]) {
            depths.insert(cell["depth"].get<double>());
            lengths.insert(cell["length"].get<int>());
        }
    }
    const std::vector<double> depth_list(depths.begin(), depths.end());
    const std::vector<int> length_list(lengths.begin(), lengths.end());
    constexpr std::size_t kColumns = 3;
    const std::size_t lines = (rows.size() + kColumns - 1) / kColumns;
    const int map_height = 70 + 30 * static_cast<int>(length_list.size());

    std::string script = fmt::format(
        "set multiplot layout {},{} margins 0.065,0.985,{},{} spacing 0.075,{}\nunset key\nunset colorbox\nset palette defined "
        "(0 "
        "'#d55e00', 0.5 '#fdf3c8', 1 '#2c9c5e')\nset cbrange [0:1]\nset tics scale 0 font ',11'\nset border 0\nset title font "
        "',12' "
        "offset 0,-0.6\n",
        lines, kColumns, 30.0 / (map_height * static_cast<double>(lines)), 1 - 28.0 / (map_height * static_cast<double>(lines)),
        64.0 / (map_height * static_cast<double>(lines)));
    script += fmt::format("set xrange [-0.5:{}]\nset yrange [-0.5:{}]\n", static_cast<double>(depth_list.size()) - 0.5,
                          static_cast<double>(length_list.size()) - 0.5);
    std::string tics;
    for (std::size_t i = 0; i < depth_list.size(); ++i) {
        tics += fmt::format("{}'{:g}' {}", i ? ", " : "", depth_list[i], i);
    }
    script += fmt::format("set xtics ({})\n", tics);
    tics.clear();
    for (std::size_t i = 0; i < length_list.size(); ++i) {
        tics += fmt::format("{}'{}' {}", i ? ", " : "", length_list[i], i);
    }
    script += fmt::format("set ytics ({})\n", tics);
    for (std::size_t r = 0; r < rows.size(); ++r) {
        const Json& retrieval = (*rows[r])["retrieval"];
        script += fmt::format("$map{} << EOD\n", r);
        for (const Json& cell : retrieval["cells"]) {
            const auto x = std::distance(depths.begin(), depths.find(cell["depth"].get<double>()));
            const auto y = std::distance(lengths.begin(), lengths.find(cell["length"].get<int>()));
            const double total = cell["total"];
            script += fmt::format("{} {} {} {}/{}\n", x, y, cell["exact"].get<double>() / total, cell["exact"].get<int>(), total);
        }
        script += "EOD\n";
        const std::string title = fmt::format("{}: {}/{}", (*rows[r])["name"].get<std::string>(), retrieval["exact"].get<int>(),
                                              retrieval["total"].get<int>());
        script += fmt::format("set title {}\n", gnuplot_string(title));
        script += fmt::format(
            "plot $map{0} using 1:2:3 with image pixels, $map{0} using 1:2:4 with labels font ',10' tc rgb '#222222'\n", r);
    }
    script += "unset multiplot";
    return Picture{.name = "retrieval", .width = 860, .height = map_height * static_cast<int>(lines), .script = script};
}

std::optional<Picture> speed_picture(const Json& result) {
    const std::vector<const Json*> rows = rows_with(result, "speed");
    if (rows.empty()) {
        return std::nullopt;
    }
    std::string script =
        "set multiplot\nset grid lc rgb '#e4e4e4' lt 1\nset border 3\nset tics nomirror\nset xlabel 'tokens in the cache'\n"
        "set yrange [0:*]\n";
    std::set<int> depths;
    for (const Json* row : rows) {
        for (const Json& run : (*row)["speed"]["runs"]) {
            depths.insert(run["depth"].get<int>());
        }
    }
    const double margin = std::max(1.0, 0.04 * *depths.rbegin());
    script += fmt::format("set xrange [{}:{}]\nset xtics ({})\n", *depths.begin() - margin, *depths.rbegin() + margin,
                          fmt::join(depths, ", "));
    for (std::size_t r = 0; r < rows.size(); ++r) {
        for (const char* kind : {"decode", "prompt"}) {
            script += fmt::format("${}{} << EOD\n", kind, r);
            for (const Json& run : (*rows[r])["speed"]["runs"]) {
                if (run["kind"] == kind) {
                    script += fmt::format("{} {} {} {}\n", run["depth"].get<int>(), run["tps"].get<double>(),
                                          run["tps_min"].get<double>(), run["tps_max"].get<double>());
                }
            }
            script += "EOD\n";
        }
    }
    for (const char* kind : {"decode", "prompt"}) {
        const bool is_decode = std::string_view(kind) == "decode";
        script += fmt::format(
            "set lmargin at screen {}\nset rmargin at screen {}\nset tmargin at screen 0.9\nset bmargin at screen "
            "0.17\nset title '{} tokens/s' font ',13'\n",
            is_decode ? 0.06 : 0.42, is_decode ? 0.355 : 0.715, kind);
        script += is_decode ? "unset key\n" : "set key at screen 0.995,0.9 right top reverse Left samplen 2 font ',11'\n";
        std::string plots;
        for (std::size_t r = 0; r < rows.size(); ++r) {
            plots += fmt::format(
                "{0}${1}{2} using 1:2 with linespoints {3} title {4}, ${1}{2} using 1:3:(0):($4-$3) with vectors nohead {5} "
                "lw 1.2 notitle",
                r ? ", " : "", kind, r, series_style(r, *rows[r]), gnuplot_string((*rows[r])["name"].get<std::string>()),
                fmt::format("lc rgb '{}'", series_ink(r, *rows[r])));
        }
        script += "plot " + plots + "\n";
    }
    script += "unset multiplot";
    const int height = std::max(400, 90 + 20 * static_cast<int>(rows.size()));
    return Picture{.name = "speed", .width = 1000, .height = height, .script = script};
}

}  // namespace vecinfer::cli
