// The information that ranks exchange before they form a group over NCCL. From it all
// ranks reach the same result: a group, or none and the reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "comm/collective/nccl/nccl_library.h"

namespace syncline::collective {

// Sent as its bytes.
struct NcclCard {
  std::array<std::byte, 16> gpu = {};  // its UUID
  int32_t version = 0;
  std::array<char, 204> why_not = {};  // ends with a zero; empty: this rank can
  NcclUniqueId id = {};                // set by the first rank
};
static_assert(sizeof(NcclCard) == 352);

void SayWhyNot(absl::string_view reason, NcclCard& card);

// Returns why the ranks with these cards cannot form a group, or "" if they can. NCCL
// does not accept two ranks on one GPU, or two versions.
std::string WhyNoGroup(std::span<const NcclCard> cards);

}  // namespace syncline::collective
