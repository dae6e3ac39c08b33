#include "vecinfer/scheme.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "vecinfer/cache.h"

namespace vecinfer {
namespace {

Scheme parsed(std::string_view text) {
    Result<Scheme> r = parse_scheme(text);
    EXPECT_TRUE(r.ok()) << text << ": " << r.status().message();
    return r.ok() ? r.value() : Scheme{};
}

struct Spelling {
    const char* text;
    const char* canonical;
    const char* spelled_out;
};

const Spelling kSpellings[] = {
    {"f16", "f16", "f16"},
    {"vecinfer", "vecinfer:k2v2",
     "vecinfer:k=d4b8,v=d4b8,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=4,prefill=windowed,encode=auto"},
    {"vecinfer:k2v2", "vecinfer:k2v2",
     "vecinfer:k=d4b8,v=d4b8,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=4,prefill=windowed,encode=auto"},
    {"vecinfer:k4v2,recent=64,sink=0", "vecinfer:k4v2,recent=64,sink=0",
     "vecinfer:k=d2b8,v=d4b8,kt=auto,vt=auto,norm=auto,scope=layer,recent=64,sink=0,prefill=windowed,encode=auto"},
    {"vecinfer:k1.5v1", "vecinfer:k1.5v1",
     "vecinfer:k=d8b12,v=d8b8,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=4,prefill=windowed,encode=auto"},
    {"vecinfer:k3v1.5,encode=unbiased,prefill=exact", "vecinfer:k3v1.5,prefill=exact,encode=unbiased",
     "vecinfer:k=d4b12,v=d8b12,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=4,prefill=exact,encode=unbiased"},
    {"vecinfer:sink=4,v=d8b8,k=d2b8,recent=128", "vecinfer:k4v1",
     "vecinfer:k=d2b8,v=d8b8,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=4,prefill=windowed,encode=auto"},
    {"vecinfer:k2v2,prefill=windowed,scope=layer,norm=none,vt=hadamard,kt=smooth",
     "vecinfer:k2v2,kt=smooth,vt=hadamard,norm=none",
     "vecinfer:k=d4b8,v=d4b8,kt=smooth,vt=hadamard,norm=none,scope=layer,recent=128,sink=4,prefill=windowed,encode=auto"},
    {"vecinfer:k2v2,vt=center+full,kt=center+smooth-opt+hadamard", "vecinfer:k2v2,kt=center+smooth-opt+hadamard,vt=center+full",
     "vecinfer:k=d4b8,v=d4b8,kt=center+smooth-opt+hadamard,vt=center+full,norm=auto,scope=layer,recent=128,sink=4,"
     "prefill=windowed,encode=auto"},
    {"rotated", "rotated:k3v3",
     "rotated:k=d1b3,v=d1b3,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=4,prefill=windowed,encode=auto"},
    {"rotated:k4v2,sink=0", "rotated:k4v2,sink=0",
     "rotated:k=d1b4,v=d1b2,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=0,prefill=windowed,encode=auto"},
    {"rotated:k=d2b8,v=d1b2", "rotated:k=d2b8,v=d1b2",
     "rotated:k=d2b8,v=d1b2,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=4,prefill=windowed,encode=auto"},
    {"vecinfer-paper:k1.5v1", "vecinfer-paper:k1.5v1",
     "vecinfer-paper:k=d8b12,v=d8b8,kt=auto,vt=auto,norm=auto,scope=head,recent=128,sink=0,prefill=exact,encode=auto"},
    {"million", "million:k2v2",
     "million:k=d4b8,v=d4b8,kt=auto,vt=auto,norm=auto,scope=subspace,recent=128,sink=0,prefill=windowed,encode=auto"},
    {"million:k4v2.5,kt=hadamard,sink=4", "million:k4v2.5,kt=hadamard,sink=4",
     "million:k=d2b8,v=d4b10,kt=hadamard,vt=auto,norm=auto,scope=subspace,recent=128,sink=4,prefill=windowed,encode=auto"},
    {"vecinfer:k2v2,layers=0-1:k4v4/7:f16/28-29:d1b4+d2b8", "vecinfer:k2v2,layers=0-1:k4v4/7:f16/28-29:d1b4+d2b8",
     "vecinfer:k=d4b8,v=d4b8,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=4,prefill=windowed,encode=auto,"
     "layers=0-1:d2b8+d2b8/7:f16/28-29:d1b4+d2b8"},
    {"kivi:layers=3:k4v4,recent=64", "kivi:k2v2,recent=64,layers=3:k4v4",
     "kivi:k=b2-token32-asym,v=b2-channel32-asym,kt=auto,vt=auto,norm=auto,scope=layer,recent=64,sink=0,prefill=windowed,encode="
     "auto,"
     "layers=3:b4-token32-asym+b4-channel32-asym"},
    {"kivi", "kivi:k2v2",
     "kivi:k=b2-token32-asym,v=b2-channel32-asym,kt=auto,vt=auto,norm=auto,scope=layer,recent=128,sink=0,prefill=windowed,encode="
     "auto"},
    {"kivi:k4v2,recent=32,kt=hadamard", "kivi:k4v2,kt=hadamard,recent=32",
     "kivi:k=b4-token32-asym,v=b2-channel32-asym,kt=hadamard,vt=auto,norm=auto,scope=layer,recent=32,sink=0,prefill=windowed,"
     "encode=auto"},
    {"innerq", "innerq:k3v3",
     "innerq:k=b3-channel32-sym,v=b3-token32-sym,kt=auto,vt=auto,norm=auto,scope=layer,recent=96,sink=32,prefill=windowed,encode="
     "auto"},
    {"innerq:k3v2h", "innerq:k3v2h",
     "innerq:k=b3-channel32-sym,v=b2-token32-hybrid,kt=auto,vt=auto,norm=auto,scope=layer,recent=96,sink=32,prefill=windowed,"
     "encode=auto"},
    {"innerq:k4v4,recent=64", "innerq:k4v4,recent=64",
     "innerq:k=b4-channel64-sym,v=b4-token64-sym,kt=auto,vt=auto,norm=auto,scope=layer,recent=64,sink=32,prefill=windowed,encode="
     "auto"},
    {"innerq:k=b8-channel128-hybrid,v=d2b8", "innerq:k=b8-channel128-hybrid,v=d2b8",
     "innerq:k=b8-channel128-hybrid,v=d2b8,kt=auto,vt=auto,norm=auto,scope=layer,recent=96,sink=32,prefill=windowed,encode=auto"},
    {"vecinfer:k2.5v3,scope=subspace", "vecinfer:k2.5v3,scope=subspace",
     "vecinfer:k=d4b10,v=d4b12,kt=auto,vt=auto,norm=auto,scope=subspace,recent=128,sink=4,prefill=windowed,encode=auto"},
    {"vecinfer:k2v2,recent=4096,sink=256,kt=none,vt=none,norm=vector,scope=head",
     "vecinfer:k2v2,kt=none,vt=none,norm=vector,scope=head,recent=4096,sink=256",
     "vecinfer:k=d4b8,v=d4b8,kt=none,vt=none,norm=vector,scope=head,recent=4096,sink=256,prefill=windowed,encode=auto"},
};

TEST(Scheme, SpellingsRoundTrip) {
    for (const Spelling& s : kSpellings) {
        const Scheme scheme = parsed(s.text);
        EXPECT_EQ(to_string(scheme), s.canonical);
        EXPECT_EQ(to_long_string(scheme), s.spelled_out);
        EXPECT_EQ(parsed(s.canonical), scheme) << s.text;
        EXPECT_EQ(parsed(s.spelled_out), scheme) << s.text;
    }
}

TEST(Scheme, EveryWidthPairRoundTrips) {
    const std::array<std::string, 6> widths = {"1", "1.5", "2", "2.5", "3", "4"};
    const std::array<std::pair<int, int>, 6> specs = {{{8, 8}, {8, 12}, {4, 8}, {4, 10}, {4, 12}, {2, 8}}};
    for (std::size_t k = 0; k < widths.size(); ++k) {
        for (std::size_t v = 0; v < widths.size(); ++v) {
            const std::string text = "vecinfer:k" + widths[k] + "v" + widths[v];
            const Scheme scheme = parsed(text);
            EXPECT_EQ(scheme.key.sub_dim, specs[k].first);
            EXPECT_EQ(scheme.key.code_bits, specs[k].second);
            EXPECT_EQ(scheme.value.sub_dim, specs[v].first);
            EXPECT_EQ(scheme.value.code_bits, specs[v].second);
            EXPECT_EQ(to_string(scheme), text);
        }
    }
    EXPECT_EQ(supported_vq_specs().size(), widths.size() + 3);  // and scalar levels at 2, 3 and 4 bits
}

TEST(Scheme, BadSpellingsNameWhatWasGotAndWhatExists) {
    const std::string key_steps =
        "auto, none, or center, smooth or smooth-opt, hadamard in this order joined by +, or full, or center+full";
    const std::string value_steps = "auto, none, or center, hadamard in this order joined by +, or full, or center+full";
    const std::pair<std::string, std::string> cases[] = {
        {"", "scheme: family: got nothing, expected one of f16, vecinfer, vecinfer-paper, million, innerq, kivi, rotated"},
        {"turbo:k2v2",
         "scheme: family: got turbo, expected one of f16, vecinfer, vecinfer-paper, million, innerq, kivi, rotated"},
        {"VECINFER",
         "scheme: family: got VECINFER, expected one of f16, vecinfer, vecinfer-paper, million, innerq, kivi, rotated"},
        {" vecinfer",
         "scheme: family: got  vecinfer, expected one of f16, vecinfer, vecinfer-paper, million, innerq, kivi, rotated"},
        {"f16:recent=1", "scheme: f16: got recent=1, expected no options: nothing is compressed"},
        {"f16,recent=1", "scheme: f16: got recent=1, expected no options: nothing is compressed"},
        {"f16:", "scheme: f16: got nothing, expected no options: nothing is compressed"},
        {"vecinfer,recent=1",
         "scheme: family: got vecinfer,recent=1, expected a colon after vecinfer, for example vecinfer:recent=64"},
        {"turbo,recent=1",
         "scheme: family: got turbo, expected one of f16, vecinfer, vecinfer-paper, million, innerq, kivi, rotated"},
        {"vecinfer:", "scheme: widths: got nothing, expected k<width>v<width>, for example k2v2, or option=value"},
        {"vecinfer:2", "scheme: widths: got 2, expected k<width>v<width>, for example k2v2, or option=value"},
        {"vecinfer:k5v2", "scheme: width: got 5, expected one of 1, 1.5, 2, 2.5, 3, 4"},
        {"vecinfer:k2v", "scheme: width: got nothing, expected one of 1, 1.5, 2, 2.5, 3, 4"},
        {"vecinfer:k2v2 ", "scheme: width: got 2 , expected one of 1, 1.5, 2, 2.5, 3, 4"},
        {"vecinfer:layers=", "scheme: layers: got nothing, expected <layer or first-last>:<codecs>, for example 0-1:k4v4"},
        {"vecinfer:layers=0:", "scheme: widths: got nothing, expected k<width>v<width>, for example k2v2, or option=value"},
        {"vecinfer:layers=x:k4v4", "scheme: layers: got x, expected 0 to 65535"},
        {"vecinfer:layers=1-:k4v4", "scheme: layers: got nothing, expected 0 to 65535"},
        {"vecinfer:layers=0:k5v4", "scheme: width: got 5, expected one of 1, 1.5, 2, 2.5, 3, 4"},
        {"vecinfer:layers=2-1:k4v4", "scheme: layers: got 2-1, expected first-last, rising, within 0 to 65535"},
        {"vecinfer:layers=0-2:k4v4/2:f16", "scheme: layers: got 2 after 0-2, expected rising ranges that do not overlap"},
        {"vecinfer:layers=5:k4v4/0-1:f16", "scheme: layers: got 0-1 after 5, expected rising ranges that do not overlap"},
        {"vecinfer:recent=16,layers=0:b2-token32-asym+d4b8",
         "scheme: recent: got 16, expected at least 32, the tokens of a group of b2-token32-asym"},
        {"kivi:recent=31", "scheme: recent: got 31, expected at least 32, the tokens of a group of b2-token32-asym"},
        {"kivi:k2v2h", "scheme: width: got 2h, expected one of 2, 3, 4"},
        {"innerq:k3v1", "scheme: width: got 1, expected one of 2, 3, 4, 2h, 3h"},
        {"million:k1v2", "scheme: width: got 1, expected one of 2, 2.5, 3, 4"},
        {"rotated:k3v1", "scheme: width: got 1, expected one of 2, 3, 4"},
        {"vecinfer:k=d3b8",
         "scheme: k: got d3b8, expected one of d2b8, d4b8, d8b8, d4b10, d4b12, d8b12, d1b2, d1b3, d1b4, b<2, 3, 4 or 8>-<channel "
         "or token><16, 32 or 64>-<sym, asym or hybrid>"},
        {"vecinfer:v=2",
         "scheme: v: got 2, expected one of d2b8, d4b8, d8b8, d4b10, d4b12, d8b12, d1b2, d1b3, d1b4, b<2, 3, 4 or 8>-<channel or "
         "token><16, 32 or 64>-<sym, asym or hybrid>"},
        {"vecinfer:k2v2,kt=rotate", "scheme: kt: got rotate, expected " + key_steps},
        {"vecinfer:k2v2,kt=", "scheme: kt: got nothing, expected " + key_steps},
        {"vecinfer:k2v2,vt=smooth", "scheme: vt: got smooth, expected " + value_steps},
        {"vecinfer:k2v2,vt=center+smooth-opt", "scheme: vt: got center+smooth-opt, expected " + value_steps},
        {"vecinfer:k2v2,vt=full+hadamard", "scheme: vt: got full+hadamard, expected " + value_steps},
        {"vecinfer:k2v2,norm=l2", "scheme: norm: got l2, expected one of auto, none, vector"},
        {"vecinfer:k2v2,scope=model", "scheme: scope: got model, expected one of layer, head, subspace"},
        {"vecinfer:k2v2,prefill=", "scheme: prefill: got nothing, expected one of windowed, exact"},
        {"vecinfer:k2v2,recent=4097", "scheme: recent: got 4097, expected 0 to 4096"},
        {"vecinfer:k2v2,recent=-1", "scheme: recent: got -1, expected 0 to 4096"},
        {"vecinfer:k2v2,recent=99999999999999999999", "scheme: recent: got 99999999999999999999, expected 0 to 4096"},
        {"vecinfer:k2v2,sink=4x", "scheme: sink: got 4x, expected 0 to 256"},
        {"vecinfer:k2v2,sink=+4", "scheme: sink: got +4, expected 0 to 256"},
        {"vecinfer:k2v2,window=4",
         "scheme: option: got window, expected one of k, v, kt, vt, norm, scope, recent, sink, prefill, encode, layers"},
        {"vecinfer:k2v2,",
         "scheme: option: got nothing, expected option=value with option one of k, v, kt, vt, norm, scope, recent, sink, "
         "prefill, encode, layers"},
        {"vecinfer:recent=1,k2v2",
         "scheme: option: got k2v2, expected option=value with option one of k, v, kt, vt, norm, scope, recent, sink, prefill, "
         "encode, layers"},
        {"vecinfer:k2v2,k=d4b8", "scheme: k: got a second value, expected it once (the short widths set k and v)"},
        {"vecinfer:sink=1,sink=1", "scheme: sink: got a second value, expected it once (the short widths set k and v)"},
        {"a\nb\x01" + std::string(60, 'c'),
         "scheme: family: got a?b?" + std::string(36, 'c') +
             "..., expected one of f16, vecinfer, vecinfer-paper, million, innerq, kivi, rotated"},
    };
    for (const auto& [text, message] : cases) {
        const Result<Scheme> r = parse_scheme(text);
        ASSERT_FALSE(r.ok()) << text;
        EXPECT_EQ(r.status().code(), ErrorCode::invalid_argument) << text;
        EXPECT_EQ(r.status().message(), message);
    }
    for (const char* steps :
         {"smooth+center", "hadamard+smooth", "center+center", "smooth+smooth-opt", "full+hadamard", "center+full+smooth",
          "full+center", "center+", "+center", "none+center", "auto+hadamard", "smooth-optimal", "Center"}) {
        const Result<Scheme> r = parse_scheme(std::string("vecinfer:k2v2,kt=") + steps);
        ASSERT_FALSE(r.ok()) << steps;
        EXPECT_EQ(r.status().message(), std::string("scheme: kt: got ") + steps + ", expected " + key_steps);
    }
}

TEST(Scheme, TransformStepsAreReadInOrder) {
    const std::pair<const char*, TransformSpec> cases[] = {
        {"auto", {.automatic = true}},
        {"none", {}},
        {"center", {.center = true}},
        {"smooth", {.smooth = true}},
        {"smooth-opt", {.smooth = true, .optimal = true}},
        {"hadamard", {.hadamard = true}},
        {"center+smooth", {.smooth = true, .center = true}},
        {"center+smooth-opt+hadamard", {.smooth = true, .hadamard = true, .center = true, .optimal = true}},
        {"center+smooth+hadamard", {.smooth = true, .hadamard = true, .center = true}},
        {"full", {.full = true}},
        {"center+full", {.center = true, .full = true}},
    };
    for (const auto& [steps, spec] : cases) {
        EXPECT_EQ(parsed(std::string("vecinfer:kt=") + steps).key_transform, spec) << steps;
        if (!spec.smooth) {
            EXPECT_EQ(parsed(std::string("vecinfer:vt=") + steps).value_transform, spec) << steps;
        }
    }
}

TEST(Scheme, RandomTextIsAcceptedOnlyIfItRoundTrips) {
    const std::array<std::string, 28> pieces = {
        "vecinfer", "f16",   ":",      ",",         "=",       "k",    "v",     "2",    "1.5", "k2v2", "kt",   "vt",
        "norm",     "scope", "recent", "sink",      "prefill", "none", "layer", "d4b8", "128", "auto", "\xff", "smooth+hadamard",
        "center",   "+",     "full",   "smooth-opt"};
    std::mt19937_64 rng(7);
    int accepted = 0;
    for (int i = 0; i < 200000; ++i) {
        std::string text = i % 2 ? "vecinfer:" : "";
        const int count = static_cast<int>(rng() % 9);
        for (int j = 0; j < count; ++j) {
            text += pieces[rng() % pieces.size()];
        }
        const Result<Scheme> r = parse_scheme(text);
        if (r.ok()) {
            ++accepted;
            EXPECT_TRUE(validate(r.value()).ok()) << text;
            EXPECT_EQ(parsed(to_string(r.value())), r.value()) << text;
        } else {
            EXPECT_EQ(r.status().message().find('\xff'), std::string::npos);
        }
    }
    EXPECT_GT(accepted, 100);
}

TEST(Scheme, ResolveWithoutCalibration) {
    const Scheme s = resolve(parsed("vecinfer:k2v2"), false).value();
    EXPECT_EQ(to_long_string(s),
              "vecinfer:k=d4b8,v=d4b8,kt=hadamard,vt=hadamard,norm=vector,scope=layer,recent=128,sink=4,prefill=windowed,encode="
              "unbiased");
    EXPECT_EQ(resolve(s, false).value(), s);
    const Scheme plain = resolve(parsed("vecinfer:k2v2,kt=none,vt=none"), false).value();
    EXPECT_EQ(plain.key_transform, TransformSpec{});
    EXPECT_EQ(plain.value_transform, TransformSpec{});
    for (const char* text : {"vecinfer:k2v2,kt=smooth", "vecinfer:k2v2,kt=smooth+hadamard", "vecinfer:k2v2,kt=smooth-opt",
                             "vecinfer:k2v2,kt=center", "vecinfer:k2v2,kt=full", "vecinfer:k2v2,vt=center+hadamard",
                             "vecinfer:k2v2,vt=full", "vecinfer:k2v2,norm=none", "vecinfer:k2v2,encode=shaped"}) {
        EXPECT_EQ(resolve(parsed(text), false).status().code(), ErrorCode::invalid_argument) << text;
        EXPECT_TRUE(resolve(parsed(text), true).ok()) << text;
    }
    const std::string expected =
        ", expected none or hadamard without a calibration (means, smooth factors and matrices come from a sidecar)";
    EXPECT_EQ(resolve(parsed("vecinfer:kt=smooth"), false).status().message(), "scheme: kt: got smooth" + expected);
    EXPECT_EQ(resolve(parsed("vecinfer:vt=center+full"), false).status().message(), "scheme: vt: got center+full" + expected);
}

TEST(Scheme, ResolveWithCalibration) {
    const Scheme s = resolve(parsed("vecinfer:k2v2"), true).value();
    EXPECT_EQ(s.key_transform, (TransformSpec{.smooth = true, .hadamard = true, .center = true, .optimal = true}));
    EXPECT_EQ(s.encode, Encode::shaped);
    EXPECT_EQ(s.value_transform, (TransformSpec{.hadamard = true}));
    EXPECT_EQ(s.norm, Norm::vector);
    EXPECT_EQ(s.scope, Scope::layer);
    EXPECT_EQ(resolve(s, true).value(), s);
    const Scheme spelled = parsed("vecinfer:k4v2,kt=hadamard,vt=hadamard,norm=none,scope=layer,encode=nearest");
    EXPECT_EQ(resolve(spelled, true).value(), spelled);
    EXPECT_EQ(resolve(parsed("f16"), true).value(), parsed("f16"));
    EXPECT_EQ(resolve(parsed("vecinfer:k2v2,norm=none"), true)->encode, Encode::shaped);
    EXPECT_EQ(resolve(parsed("vecinfer:scope=subspace"), true)->encode, Encode::nearest);
    EXPECT_EQ(resolve(parsed("vecinfer:norm=none,encode=unbiased"), true).status().message(),
              "scheme: encode: got unbiased, expected nearest or shaped with norm=none (it is the norm that is adjusted)");
    EXPECT_FALSE(resolve(parsed("rotated:encode=shaped"), true).ok());
    EXPECT_FALSE(resolve(parsed("million:encode=shaped"), true).ok());
}

TEST(Scheme, FamiliesResolveToTheirOwnParts) {
    const TransformSpec none;
    const TransformSpec hadamard{.hadamard = true};
    const Scheme rotated = resolve(parsed("rotated:k2v2"), false).value();
    EXPECT_EQ(to_long_string(rotated),
              "rotated:k=d1b2,v=d1b2,kt=hadamard,vt=hadamard,norm=vector,scope=layer,recent=128,sink=4,prefill=windowed,encode="
              "nearest");
    const Scheme paper = resolve(parsed("vecinfer-paper:k1.5v1"), true).value();
    EXPECT_EQ(to_long_string(paper),
              "vecinfer-paper:k=d8b12,v=d8b8,kt=smooth+hadamard,vt=none,norm=none,scope=head,recent=128,sink=0,prefill=exact,"
              "encode=nearest");
    EXPECT_FALSE(resolve(parsed("vecinfer-paper"), false).ok()) << "smooth factors come from a calibration";
    const Scheme calibrated = resolve(parsed("rotated"), true).value();
    EXPECT_EQ(calibrated.key_transform, hadamard);
    EXPECT_EQ(calibrated.norm, Norm::vector);
    const Scheme kivi = resolve(parsed("kivi"), false).value();
    EXPECT_EQ(to_long_string(kivi),
              "kivi:k=b2-token32-asym,v=b2-channel32-asym,kt=none,vt=none,norm=none,scope=layer,recent=128,sink=0,prefill="
              "windowed,encode=nearest");
    EXPECT_EQ(resolve(parsed("kivi"), true).value(), kivi);
    EXPECT_FALSE(learns(kivi));
    EXPECT_TRUE(learns(resolve(parsed("kivi:kt=center"), true).value()));
    EXPECT_TRUE(resolve(parsed("kivi:kt=hadamard"), false).ok());
    EXPECT_FALSE(resolve(parsed("kivi:kt=center"), false).ok());
    const Scheme innerq = resolve(parsed("innerq:k3v2h"), true).value();
    EXPECT_EQ(innerq.key_transform, (TransformSpec{.smooth = true})) << "the channel norm";
    EXPECT_TRUE(learns(innerq));
    EXPECT_EQ(resolve(parsed("innerq"), false)->key_transform, none);
    EXPECT_EQ(resolve(parsed("kivi:v=d2b8,norm=vector"), false)->norm, Norm::vector);
    const Scheme million = resolve(parsed("million:k4v4"), true).value();
    EXPECT_EQ(to_long_string(million),
              "million:k=d2b8,v=d2b8,kt=none,vt=none,norm=none,scope=subspace,recent=128,sink=0,prefill=windowed,encode=nearest");
    EXPECT_EQ(resolve(million, true).value(), million);
    EXPECT_EQ(resolve(parsed("million"), false).status().message(),
              "scheme: scope: got subspace, expected layer or head without a calibration (there is no universal codebook of a "
              "subspace)");
}

TEST(Scheme, LayersHaveTheirOwnCodecs) {
    const Scheme s = resolve(parsed("vecinfer:k2v2,layers=0-1:k4v4/5:f16/7:b4-channel32-sym+b4-channel32-asym"), false).value();
    EXPECT_EQ(to_string(scheme_of_layer(s, 0)), to_string(resolve(parsed("vecinfer:k4v4"), false).value()));
    EXPECT_EQ(scheme_of_layer(s, 1), scheme_of_layer(s, 0));
    EXPECT_EQ(scheme_of_layer(s, 2), resolve(parsed("vecinfer:k2v2"), false).value());
    EXPECT_EQ(scheme_of_layer(s, 5), f16_scheme());
    EXPECT_TRUE(s.is_f16(5));
    EXPECT_FALSE(s.is_f16(4));
    EXPECT_FALSE(s.is_f16());
    EXPECT_EQ(scheme_of_layer(s, 7).norm, Norm::none);
    EXPECT_TRUE(validate(scheme_of_layer(s, 7)).ok());
    EXPECT_TRUE(f16_scheme().is_f16(3));
    std::vector<LayerShape> shapes;
    for (int i = 0; i < 8; ++i) {
        shapes.push_back({i, 2, 64, 64});
    }
    // Layers 2, 3, 4 and 6 at 2 bits, two at 4, one at 16, one at 4 with scales.
    const Footprint f = footprint(s, shapes, 4096, false).value();
    EXPECT_DOUBLE_EQ(8 * f.code_bytes_per_token / (2 * 2 * 64), 4 * 2.125 + 2 * 4.125 + 16 + (4.5 + 5) / 2);
    EXPECT_EQ(f.codebook_bytes, (256u * 4 + 4) + (256u * 2 + 4));
    const Footprint alone = footprint(parsed("vecinfer:k2v2"), std::span(shapes).first(1), 4096, false).value();
    EXPECT_EQ(f.window_bytes, 7 * alone.window_bytes);
}

TEST(Scheme, LayersMustBeThoseOfTheModel) {
    const Scheme s = parsed("vecinfer:k2v2,layers=0-1:k4v4/28-29:f16");
    EXPECT_TRUE(check_layers(s, 30).ok());
    EXPECT_TRUE(check_layers(parsed("vecinfer:k2v2"), 1).ok());
    EXPECT_EQ(check_layers(s, 29).message(), "scheme: layers: got 28-29, expected layers 0 to 28: the model has 29");
    EXPECT_EQ(check_layers(s, 1).message(), "scheme: layers: got 0-1, expected layers 0 to 0: the model has 1");
    EXPECT_EQ(check_layers(parsed("vecinfer:layers=7:f16"), 7).code(), ErrorCode::invalid_argument);
}

TEST(Scheme, HandMadeSchemesAreChecked) {
    Scheme s;
    EXPECT_TRUE(validate(s).ok());
    s.key.sub_dim = 3;
    EXPECT_EQ(validate(s).message(),
              "scheme: k: got d3b8, expected one of d2b8, d4b8, d8b8, d4b10, d4b12, d8b12, d1b2, d1b3, d1b4, b<2, 3, 4 or "
              "8>-<channel or token><16, 32 or 64>-<sym, asym or hybrid>");
    EXPECT_FALSE(resolve(s, true).ok());
    s = Scheme{};
    s.value_transform = {.smooth = true};
    EXPECT_FALSE(validate(s).ok());
    s = Scheme{};
    s.window.recent = 5000;
    EXPECT_EQ(validate(s).message(), "scheme: recent: got 5000, expected 0 to 4096");
    s = parsed("kivi");
    s.window.recent = 31;
    EXPECT_EQ(validate(s).message(), "scheme: recent: got 31, expected at least 32, the tokens of a group of b2-token32-asym");
    s = parsed("kivi");
    s.norm = Norm::vector;
    EXPECT_EQ(validate(s).message(),
              "scheme: norm: got vector, expected none or auto with scalar codecs, which have scales of their own");
    s.key.group = 48;
    EXPECT_FALSE(validate(s).ok());
    s = Scheme{};
    s.family = "other";
    EXPECT_FALSE(validate(s).ok());
}

TEST(Footprint, CountsNormsWindowAndCodebooks) {
    // 30 layers of 3 KV heads with head_dim 64: K and V of one token are 30 * 2 * 192 values.
    std::vector<LayerShape> layers;
    for (int i = 0; i < 30; ++i) {
        layers.push_back({i, 3, 64, 64});
    }
    const double values = 30 * 2 * 192;
    const Footprint f = footprint(parsed("vecinfer:k2v2"), layers, 8192, false).value();
    EXPECT_EQ(f.code_bits_per_value, 2);
    EXPECT_EQ(8 * f.code_bytes_per_token / values, 2.125);  // one norm byte per 64 values
    EXPECT_EQ(f.f16_bytes_per_token, 2 * values);
    const std::size_t window_rows = 128 + kRollbackRows + kSinkSequences * 4;
    EXPECT_EQ(f.window_bytes, 60 * window_rows * (2 * 192 + 16));
    EXPECT_EQ(f.codebook_bytes, 256u * 4 + 4);  // the one universal codebook
    const double parts = 8192 * f.code_bytes_per_token + static_cast<double>(f.window_bytes + f.codebook_bytes);
    EXPECT_GE(8192 * f.total_bytes_per_token, parts);
    EXPECT_LE(8192 * f.total_bytes_per_token, parts + 60 * 4096);  // at most padding and headers on top
    EXPECT_DOUBLE_EQ(f.effective_bits_per_value, 8 * f.total_bytes_per_token / values);
}

// SmolLM2-135M at its full context, everything that a calibration adds included.
TEST(Footprint, TwoBitsAreSixAndAHalfTimesSmallerThanF16) {
    std::vector<LayerShape> layers;
    for (int i = 0; i < 30; ++i) {
        layers.push_back({i, 3, 64, 64});
    }
    for (const bool calibrated : {false, true}) {
        const Footprint f = footprint(parsed("vecinfer:k2v2"), layers, 8192, calibrated).value();
        EXPECT_GE(f.f16_bytes_per_token / f.total_bytes_per_token, 6.5) << (calibrated ? "calibrated" : "data-free");
    }
}

TEST(Footprint, CalibratedCodebooksAndMixedWidths) {
    const LayerShape layers[] = {{0, 2, 128, 64}, {5, 1, 128, 64}};
    const Footprint head = footprint(parsed("vecinfer:k4v1.5,scope=head"), layers, 1000, true).value();
    EXPECT_EQ(head.codebook_bytes,
              3 * (256u * 2 + 4 + 4096 * 8 + 4 + (2 * 4 + 32 * 2) * 128));  // center, smooth factors and directions of keys
    const Footprint full =
        footprint(parsed("vecinfer:k4v1.5,scope=head,kt=center+full,vt=center+full,encode=nearest"), layers, 1000, true).value();
    EXPECT_EQ(full.codebook_bytes, 3 * (256u * 2 + 4 + 4096 * 8 + 4 + 4 * 128 + 4 * 64 + 4 * 128 * 128 + 4 * 64 * 64));
    EXPECT_DOUBLE_EQ(head.code_bits_per_value, (4.0 * 128 + 1.5 * 64) / 192);
    const Footprint layer = footprint(parsed("vecinfer:k4v1.5,kt=none,encode=nearest"), layers, 1000, true).value();
    EXPECT_EQ(layer.codebook_bytes, 2 * (256u * 2 + 4 + 4096 * 8 + 4));
    const Footprint no_norm = footprint(parsed("vecinfer:k4v2,norm=none,recent=0,sink=0"), layers, 1000, true).value();
    EXPECT_EQ(no_norm.code_bytes_per_token, 3 * (128 / 2 + 64 / 4));
    EXPECT_EQ(no_norm.window_bytes, 0u);
}

// Scales, zeros and the mask of written cells are all counted.
TEST(Footprint, ScalesAndZerosOfScalarCodecs) {
    const LayerShape layers[] = {{0, 2, 128, 128}};
    const auto bits = [&](const char* text) {
        return 8 * footprint(parsed(text), layers, 4096, false)->code_bytes_per_token / (2 * 2 * 128);
    };
    const double mask = 64.0 / (64 * 128) / 2;  // per head and block of 64 cells, of one of the two sides
    EXPECT_DOUBLE_EQ(bits("kivi:k2v2"), 3 + mask);
    EXPECT_DOUBLE_EQ(bits("kivi:k4v4"), 5 + mask);
    EXPECT_DOUBLE_EQ(bits("innerq:k3v3"), 3.5 + mask);
    EXPECT_DOUBLE_EQ(bits("innerq:k3v2"), 3.0 + mask);
    EXPECT_DOUBLE_EQ(bits("innerq:k3v2h"), (3.5 + 3) / 2 + mask);
    EXPECT_DOUBLE_EQ(bits("innerq:k4v4"), 4.25 + mask);
    EXPECT_EQ(footprint(parsed("kivi"), layers, 4096, false)->codebook_bytes, 0u);
    EXPECT_EQ(footprint(parsed("innerq"), layers, 4096, true)->codebook_bytes, 4u * 2 * 128);  // the channel norm
    const LayerShape odd[] = {{7, 2, 80, 80}};
    EXPECT_EQ(footprint(parsed("innerq"), odd, 100, false).status().message(),
              "footprint: layer 7 head_dim_k: got 80, expected a multiple of 32, the scheme's group of channels");
}

TEST(Footprint, OneCodebookPerSubspace) {
    const LayerShape layers[] = {{0, 2, 128, 64}};
    const Footprint f = footprint(parsed("million:k2v4,recent=0"), layers, 4096, true).value();
    EXPECT_EQ(f.codebook_bytes, 2 * (32 * (256u * 4 + 4) + 32 * (256u * 2 + 4)));
    EXPECT_EQ(f.code_bytes_per_token, 2 * (128 / 4 + 64 / 2));
    const Footprint wide = footprint(parsed("million:k2.5v3,recent=0"), layers, 4096, true).value();
    EXPECT_EQ(wide.code_bytes_per_token, 2 * (128 * 2.5 + 64 * 3) / 8);
    EXPECT_DOUBLE_EQ(wide.code_bits_per_value, (128 * 2.5 + 64 * 3) / 192);
}

TEST(Footprint, F16IsSixteenBits) {
    const LayerShape layers[] = {{0, 3, 64, 64}};
    const Footprint f = footprint(parsed("f16"), layers, 512, false).value();
    EXPECT_EQ(f.code_bits_per_value, 16);
    EXPECT_EQ(f.effective_bits_per_value, 16);
    EXPECT_EQ(f.total_bytes_per_token, f.f16_bytes_per_token);
    EXPECT_EQ(f.code_bytes_per_token, 2 * 2 * 192);
}

TEST(Footprint, BadShapes) {
    const LayerShape good[] = {{0, 3, 64, 64}};
    const LayerShape odd[] = {{7, 3, 100, 64}};
    const LayerShape none[] = {{7, 0, 64, 64}};
    const LayerShape huge[] = {{7, 2147483647, 64, 64}};
    EXPECT_EQ(footprint(parsed("vecinfer:k1v2"), odd, 100, false).status().message(),
              "footprint: layer 7 head_dim_k: got 100, expected a multiple of 8, the scheme's sub_dim");
    EXPECT_EQ(footprint(parsed("vecinfer"), none, 100, false).status().message(),
              "footprint: layer 7 num_kv_heads: got 0, expected 1 to 4096");
    EXPECT_FALSE(footprint(parsed("vecinfer"), huge, 100, false).ok());
    EXPECT_FALSE(footprint(parsed("vecinfer"), {}, 100, false).ok());
    EXPECT_FALSE(footprint(parsed("vecinfer"), good, 0, false).ok());
    EXPECT_FALSE(footprint(parsed("vecinfer"), good, std::int64_t{1} << 31, false).ok());
    EXPECT_FALSE(footprint(parsed("vecinfer:kt=smooth"), good, 100, false).ok());
}

}  // namespace
}  // namespace vecinfer
