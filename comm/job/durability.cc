#include "comm/job/durability.h"

#include <algorithm>
#include <cstddef>

namespace syncline {

std::string_view DurabilityName(Durability durability) {
  return kDurabilities.at(static_cast<size_t>(durability));
}

std::optional<Durability> ParseDurability(std::string_view word) {
  const auto found = std::ranges::find(kDurabilities, word);
  if (found == kDurabilities.end()) return std::nullopt;
  return static_cast<Durability>(found - kDurabilities.begin());
}

}  // namespace syncline
