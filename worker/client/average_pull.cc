#include "worker/client/average_pull.h"

#include <span>

#include "comm/base/check.h"

namespace syncline {

void AveragePull::Begin(const Wanted& wanted) {
  SYNCLINE_CHECK(!is_under_way());
  values_.assign(wanted.elements, 0.0f);
  for (uint32_t i = 0; i < wanted.blocks; ++i) missing_.insert(wanted.first_block + i);
}

bool AveragePull::Land(uint32_t block, const BlockLabel& label, ByteView payload,
                       const Codec& codec) {
  if (!missing_.contains(block)) return false;
  const auto view = ParseBlock(payload, label, {&codec});
  if (!view.ok()) return false;
  const auto out =
      std::span(values_).subspan(label.range.first_element, label.range.elements);
  for (const TileView& tile : view->tiles) {
    const auto of_tile = out.subspan(tile.first_element, tile.elements);
    SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, of_tile).ok());
  }
  missing_.erase(block);
  if (!is_under_way()) due_ = absl::InfiniteDuration();
  return !is_under_way();
}

}  // namespace syncline
