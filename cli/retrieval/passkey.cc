#include "retrieval/passkey.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

namespace vecinfer::retrieval {
namespace {

using namespace std::string_view_literals;

// Things that have a number. They share few words, so that small models can tell them apart.
constexpr std::array kThings = {
    "phone number of the bakery"sv,
    "flight number to Lisbon"sv,
    "locker code of Anna"sv,
    "serial number of the printer"sv,
    "pass key of the vault"sv,
    "invoice number of the plumber"sv,
    "house number of the doctor"sv,
    "room number of the singer"sv,
    "tracking number of the parcel"sv,
    "library card of Thomas"sv,
    "account number of the museum"sv,
    "licence plate of the taxi"sv,
    "price of the violin"sv,
    "weight of the elephant"sv,
    "height of the mountain"sv,
    "population of the island"sv,
    "age of the cathedral"sv,
    "distance to the lighthouse"sv,
    "ticket number of the lottery"sv,
    "lock combination of the bicycle"sv,
    "postal code of Dublin"sv,
    "member number of the judge"sv,
    "page count of the dictionary"sv,
    "seat number of the pilot"sv,
    "batch number of the medicine"sv,
    "order number of the sofa"sv,
    "platform number of the train"sv,
    "engine number of the tractor"sv,
    "depth of the lake"sv,
    "score of the chess match"sv,
    "bus pass of Maria"sv,
    "radio channel of the police"sv,
    "recipe number of the soup"sv,
    "size of the army"sv,
    "length of the river"sv,
    "badge number of the guard"sv,
    "pin code of the phone"sv,
    "catalogue number of the statue"sv,
    "cost of the wedding"sv,
    "speed of the comet"sv,
};

constexpr std::array kSubjects = {
    "The gardener"sv, "A young sailor"sv, "The old teacher"sv, "Our neighbour"sv,   "The postman"sv, "A tired traveller"sv,
    "The baker"sv,    "My cousin"sv,      "The librarian"sv,   "A quiet painter"sv, "The miller"sv,  "The night watchman"sv,
};
constexpr std::array kVerbs = {
    "walked past"sv,  "wrote about"sv, "looked after"sv,  "remembered"sv, "drew a picture of"sv, "talked about"sv,
    "searched for"sv, "repaired"sv,    "waited beside"sv, "dreamed of"sv, "took a photo of"sv,   "cleaned"sv,
};
constexpr std::array kObjects = {
    "the stone bridge"sv, "a wooden boat"sv,   "the apple orchard"sv, "an empty mill"sv, "the village well"sv, "a broken clock"sv,
    "the long fence"sv,   "a copper kettle"sv, "the market hall"sv,   "a narrow path"sv, "the school bell"sv,  "a blue lantern"sv,
};
constexpr std::array kEndings = {
    "before the rain came"sv,      "on a cold morning"sv,  "while the kettle boiled"sv, "late in the evening"sv,
    "as the wind grew stronger"sv, "and then went home"sv, "without saying a word"sv,   "for the second time"sv,
    "when the shops had closed"sv, "after a short rest"sv, "with great patience"sv,     "until the lamps were lit"sv,
};

// splitmix64: small, and the same everywhere.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t below(std::uint64_t limit) {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return (z ^ (z >> 31)) % limit;
    }
    template <class Words>
    std::string_view pick(const Words& words) {
        return words[below(words.size())];
    }

private:
    std::uint64_t state_;
};

std::string filler(Random& random) {
    const std::string_view subject = random.pick(kSubjects);
    const std::string_view verb = random.pick(kVerbs);
    const std::string_view object = random.pick(kObjects);
    return fmt::format("{} {} {} {}. ", subject, verb, object, random.pick(kEndings));
}

std::string new_key(Random& random, std::set<std::string>& used) {
    for (;;) {
        const auto digits = 5 + random.below(3);
        std::string key(1, static_cast<char>('1' + random.below(9)));
        while (key.size() < digits) {
            key += static_cast<char>('0' + random.below(10));
        }
        if (used.insert(key).second) {
            return key;
        }
    }
}

std::string hiding_sentence(const Question& question) {
    return fmt::format("The {} is {}. Remember: the {} is {}. ", question.name, question.key, question.name, question.key);
}

struct Needle {
    std::size_t stop;  // index of its length
    double position;   // tokens before it
    Question question;
};

Status check(const PasskeyOptions& options) {
    if (options.lengths.empty() || options.depths.empty()) {
        return argument_error("retrieval", "no lengths or no depths", "at least one of each");
    }
    for (const int length : options.lengths) {
        if (length < 1) {
            return argument_error("lengths", std::to_string(length), "positive numbers");
        }
    }
    for (const double depth : options.depths) {
        if (!(depth >= 0 && depth <= 1)) {
            return argument_error("depths", fmt::format("{}", depth), "0 to 1");
        }
    }
    const std::size_t most = kThings.size() / (options.lengths.size() * options.depths.size());
    if (options.keys_per_cell < 1 || static_cast<std::size_t>(options.keys_per_cell) > most) {
        return argument_error(
            "keys", std::to_string(options.keys_per_cell),
            fmt::format("1 to {} for {} lengths and {} depths", most, options.lengths.size(), options.depths.size()));
    }
    return {};
}

std::vector<Needle> make_needles(const PasskeyOptions& options, const std::vector<int>& lengths, Random& random) {
    std::vector<std::string_view> names(kThings.begin(), kThings.end());
    std::set<std::string> used;
    std::vector<Needle> needles;
    for (std::size_t stop = 0; stop < lengths.size(); ++stop) {
        for (const double depth : options.depths) {
            for (int i = 0; i < options.keys_per_cell; ++i) {
                const std::size_t at = random.below(names.size());
                const std::string name(names[at]);
                names.erase(names.begin() + static_cast<std::ptrdiff_t>(at));
                needles.push_back({stop,
                                   depth * (lengths[stop] - options.reserve),
                                   {lengths[stop], depth, name, new_key(random, used),
                                    fmt::format("\n\nQuestion: What is the {}?\nAnswer: The {} is", name, name)}});
            }
        }
    }
    std::stable_sort(needles.begin(), needles.end(), [](const Needle& a, const Needle& b) { return a.position < b.position; });
    return needles;
}

}  // namespace

Result<std::vector<Stretch>> make_haystack(const PasskeyOptions& options, const CountTokens& count_tokens) {
    if (Status status = check(options); !status.ok()) {
        return status;
    }
    std::vector<int> lengths = options.lengths;
    std::sort(lengths.begin(), lengths.end());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());

    Random random(options.seed);
    const std::vector<Needle> needles = make_needles(options, lengths, random);
    std::vector<int> sizes;
    for (const Needle& needle : needles) {
        sizes.push_back(count_tokens(hiding_sentence(needle.question)));
    }

    std::vector<Stretch> stretches(lengths.size());
    std::size_t next = 0;
    int tokens = 0;
    for (std::size_t stop = 0; stop < lengths.size(); ++stop) {
        Stretch& stretch = stretches[stop];
        std::size_t last = next;  // behind the last needle that must be hidden before this stop
        for (std::size_t i = next; i < needles.size(); ++i) {
            last = needles[i].stop == stop ? i + 1 : last;
        }
        const auto hide = [&] {
            stretch.text += hiding_sentence(needles[next].question);
            tokens += sizes[next++];
        };
        for (;;) {
            const std::string sentence = filler(random);
            const int size = count_tokens(sentence);
            const int reserved = std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(std::min(next, last)),
                                                 sizes.begin() + static_cast<std::ptrdiff_t>(last), 0);
            if (tokens + reserved + size > lengths[stop] - options.reserve) {
                break;
            }
            stretch.text += sentence;
            tokens += size;
            while (next < needles.size() && needles[next].position <= tokens) {
                hide();
            }
        }
        while (next < last) {
            hide();
        }
        if (tokens > lengths[stop] - options.reserve) {
            return argument_error("lengths", std::to_string(lengths[stop]),
                                  fmt::format("at least {} for the {} keys up to there", tokens + options.reserve, next));
        }
    }
    for (const Needle& needle : needles) {
        stretches[needle.stop].questions.push_back(needle.question);
    }
    return stretches;
}

bool is_exact(std::string_view completion, std::string_view key) {
    const std::size_t begin = completion.find_first_not_of(" \t");
    if (begin == std::string_view::npos || key.empty()) {
        return false;
    }
    const std::string_view rest = completion.substr(begin);
    return rest.substr(0, rest.find_first_not_of("0123456789")) == key;
}

bool is_finished(std::string_view completion) {
    const std::size_t begin = completion.find_first_not_of(" \t");
    return begin != std::string_view::npos && completion.find_first_not_of("0123456789", begin) != std::string_view::npos;
}

}  // namespace vecinfer::retrieval
