// Positions inside a tile, in ascending order. A selector finds them, an index coder
// writes them, and a decoder reads them back.
//
//   IndexList list(n);
//   FindAtLeast(values, floor, list);
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
  // Kernels store whole vectors, so up to this many entries after the last may be
  // overwritten.
  static constexpr uint32_t kSlack = 32;

  // Makes room for `capacity` entries, which are not initialised. REQUIRES: at most
  // kTileElements.
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
  // Sets the entries to 0, 1, ..., count - 1.
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
