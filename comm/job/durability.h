// How a job survives lost servers: what its setting `durability` means.
//
//   const std::optional<Durability> durability = ParseDurability(settings.durability);
//   if (durability && HasJournals(*durability)) ...
//
// JobSettings stores the word, because it also holds words that are yet to be checked.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace syncline {

enum class Durability {
  kNone,
  kDisk,         // by a journal of each step
  kPeer,         // by a backup in another server's memory
  kDiskAndPeer,  // by both
};

// The words, in the order of the values.
inline constexpr std::array<std::string_view, 4> kDurabilities = {"none", "disk", "peer",
                                                                  "disk+peer"};

// Returns the word, such as "disk+peer".
std::string_view DurabilityName(Durability durability);
// Returns nullopt for a word that is not allowed, and for an empty one.
std::optional<Durability> ParseDurability(std::string_view word);

constexpr bool HasJournals(Durability durability) {
  return durability == Durability::kDisk || durability == Durability::kDiskAndPeer;
}
constexpr bool HasBackups(Durability durability) {
  return durability == Durability::kPeer || durability == Durability::kDiskAndPeer;
}

}  // namespace syncline
