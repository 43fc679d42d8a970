// Statistics that all benchmarks report in the same form.
#pragma once

#include <vector>

#include "nlohmann/json.hpp"

namespace syncline {

// Returns {"median", "p10", "p90"}, by linear interpolation between closest ranks.
// REQUIRES: at least one sample.
nlohmann::json Quantiles(std::vector<double> samples);

// Returns {"cores", "isa", "copy_gbs"}. Measures for a quarter of a second.
nlohmann::json MachineFigures();

}  // namespace syncline
