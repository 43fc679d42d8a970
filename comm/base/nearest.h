// Suggests corrections of misspelled names: "Unknown flag --wrokers; did you mean
// --workers?".
//
//   return absl::InvalidArgumentError(
//       absl::StrCat("unknown codec '", name, "'", DidYouMean(name, names)));
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace syncline {

// Returns the number of insertions, deletions, substitutions and swaps of neighbours that
// turn `a` into `b` (Damerau-Levenshtein, optimal string alignment). Ignores letter case.
size_t EditDistance(std::string_view a, std::string_view b);

// Returns the candidate with the smallest edit distance to `name`, the first of equals.
// Empty if none is near: within a third of the longer name, rounded up.
std::string_view NearestName(std::string_view name,
                             std::span<const std::string_view> candidates);

// Returns "; did you mean 'workers'?", or an empty string if no candidate is near.
std::string DidYouMean(std::string_view name,
                       std::span<const std::string_view> candidates);

}  // namespace syncline
