#include "server/coordinator/events.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

namespace syncline {
namespace {

// Indexed by EventKind.
constexpr std::array<std::string_view, 17> kNames = {
    "join",  "leave",       "death",    "exit",   "epoch",  "settings",
    "codec", "checkpoint",  "recovery", "stall",  "server", "backup",
    "end",   "coordinator", "goal",     "answer", "moved"};
static_assert(kNames.size() == static_cast<size_t>(EventKind::kMoved) + 1);

}  // namespace

std::string_view EventKindName(EventKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

std::optional<EventKind> EventKindOf(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<EventKind>(std::distance(kNames.begin(), found));
}

}  // namespace syncline
