// The result of a comparison as one JSON document, and as the table and the CSV file that are made from it.
#pragma once

#include <string>
#include <vector>

#include "compare/session.h"

namespace vecinfer::cli {

/// Facts about the run that belong in the document.
struct RunFacts {
    std::string model_name;
    std::string architecture;
    std::int64_t model_context = 0;
    std::int64_t footprint_context = 0;
    double seconds = 0;
};

/// docs/compare.md describes every field.
Json result_json(const CompareOptions& options, const RunFacts& facts, const std::vector<Row>& rows);

/// A line that says how little was measured, empty if it was not that little.
std::string sample_note(const Json& result);
/// Schemes and peers for which no other has both fewer effective bits and a lower mean KLD.
std::vector<std::string> pareto_front(const Json& result);

std::string result_table(const Json& result);
std::string result_csv(const Json& result);

/// The speed run of that kind and depth in a row of the document; null if there is none.
Json speed_at(const Json& row, const std::string& kind, int depth);

}  // namespace vecinfer::cli
