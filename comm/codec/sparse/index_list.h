// Positions inside a tile, in ascending order: what a selector finds, an index coder
// writes and a decoder reads back.
//
//   IndexList list(n);
//   list.set_count(FindAtLeast(values, floor, list.data()));
//   for (const uint16_t i : list.view()) ...
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "comm/base/check.h"
#include "comm/base/limits.h"

namespace syncline {

static_assert(kTileElements <= 65536, "positions are uint16_t");

class IndexList {
 public:
  // Kernels store whole vectors: so many entries after the last one may be overwritten.
  static constexpr uint32_t kSlack = 32;

  // Room for `capacity` entries, not initialised. REQUIRES: at most kTileElements.
  explicit IndexList(uint32_t capacity)
      : capacity_(capacity),
        entries_(std::make_unique_for_overwrite<uint16_t[]>(capacity + kSlack)) {
    SYNCLINE_CHECK(capacity <= kTileElements);
  }

  uint16_t* data() { return entries_.get(); }
  uint32_t count() const { return count_; }
  void set_count(uint32_t count) {
    SYNCLINE_CHECK(count <= capacity_);
    count_ = count;
  }
  void Append(uint32_t index) { entries_[count_++] = static_cast<uint16_t>(index); }
  // All entries from 0 on.
  void SetEvery(uint32_t count) {
    set_count(count);
    for (uint32_t i = 0; i < count; ++i) entries_[i] = static_cast<uint16_t>(i);
  }

  std::span<const uint16_t> view() const { return {entries_.get(), count_}; }

 private:
  uint32_t capacity_;
  uint32_t count_ = 0;
  std::unique_ptr<uint16_t[]> entries_;
};

}  // namespace syncline
