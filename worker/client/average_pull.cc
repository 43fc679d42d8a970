#include "worker/client/average_pull.h"

#include <span>

#include "comm/base/check.h"

namespace syncline {

void AveragePull::Begin(const Wanted& wanted) {
  SYNCLINE_CHECK(!is_under_way());
  values_.assign(wanted.elements, 0.0f);
  array_ = wanted.array;
  version_.reset();
  for (uint32_t i = 0; i < wanted.blocks; ++i) missing_.insert(wanted.first_block + i);
}

std::vector<uint32_t> AveragePull::TakeDue(absl::Duration now) {
  std::vector<uint32_t> due;
  std::erase_if(refused_, [&](const auto& entry) {
    if (entry.second > now) return false;
    due.push_back(entry.first);
    return true;
  });
  return due;
}

void AveragePull::Land(uint32_t block, const BlockLabel& label, ByteView payload,
                       const Codec& codec) {
  if (!missing_.contains(block)) return;
  const auto view = ParseBlock(payload, label, {&codec});
  if (!view.ok()) return;
  const auto out =
      std::span(values_).subspan(label.range.first_element, label.range.elements);
  for (const TileView& tile : view->tiles) {
    const auto of_tile = out.subspan(tile.first_element, tile.elements);
    SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, of_tile).ok());
  }
  missing_.erase(block);
  refused_.erase(block);
}

}  // namespace syncline
