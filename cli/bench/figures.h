// Figures that all benchmarks print the same way.
#pragma once

#include <vector>

#include "nlohmann/json.hpp"

namespace syncline {

// {"median", "p10", "p90"} of at least one sample, by linear interpolation between
// closest ranks.
nlohmann::json Quantiles(std::vector<double> samples);

// {"cores", "isa", "copy_gbs"}; measures for a quarter of a second.
nlohmann::json MachineFigures();

}  // namespace syncline
