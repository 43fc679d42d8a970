#include "comm/collective/nccl/nccl_card.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace syncline::collective {

void SayWhyNot(absl::string_view reason, NcclCard& card) {
  const size_t length = std::min(reason.size(), card.why_not.size() - 1);
  std::copy_n(reason.begin(), length, card.why_not.begin());
}

std::string WhyNoGroup(std::span<const NcclCard> cards) {
  std::map<std::array<std::byte, 16>, size_t> ranks;  // by GPU
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    const NcclCard& card = cards[rank];
    if (card.why_not[0] != 0) {
      const auto end = std::find(card.why_not.begin(), card.why_not.end(), '\0');
      return absl::StrCat("rank ", rank, ": ", std::string(card.why_not.begin(), end));
    }
    if (card.version != cards[0].version) {
      return absl::StrCat("rank ", rank, " has NCCL version ", card.version,
                          ", but rank 0 has ", cards[0].version);
    }
    const auto [other, is_new] = ranks.emplace(card.gpu, rank);
    if (!is_new) {
      return absl::StrCat("ranks ", other->second, " and ", rank,
                          " are on the same GPU, which NCCL does not take");
    }
  }
  return "";
}

}  // namespace syncline::collective
