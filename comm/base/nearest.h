// "Unknown flag --wrokers; did you mean --workers?", and nothing of the kind where no name
// is near.
//
//   return absl::InvalidArgumentError(
//       absl::StrCat("unknown codec '", name, "'", DidYouMean(name, names)));
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace syncline {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`
// (Damerau-Levenshtein, optimal string alignment). Letter case does not count.
size_t EditDistance(std::string_view a, std::string_view b);

// The candidate with the smallest edit distance to `name`, the first of equals; empty when
// none is near: within a third of the longer name, rounded up.
std::string_view NearestName(std::string_view name,
                             std::span<const std::string_view> candidates);

// "; did you mean 'workers'?"; empty when none is near.
std::string DidYouMean(std::string_view name,
                       std::span<const std::string_view> candidates);

}  // namespace syncline
