// The averaged weights of one tensor on their way from the servers, block by block.
//
// Thread safety: none; the exchange owns it.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/codec/frame.h"

namespace syncline {

class AveragePull {
 public:
  struct Wanted {
    uint32_t first_block = 0;
    uint32_t blocks = 0;
    size_t elements = 0;
  };
  // REQUIRES: nothing is under way.
  void Begin(const Wanted& wanted);
  void Cancel() { missing_.clear(); }

  bool is_under_way() const { return !missing_.empty(); }
  // To ask for, and when to ask again.
  const std::set<uint32_t>& missing() const { return missing_; }
  absl::Duration due() const { return due_; }
  void AskedUntil(absl::Duration due) {
    due_ = is_under_way() ? due : absl::InfiniteDuration();
  }

  // A block came: true when it was the last one. What does not parse is asked for again.
  bool Land(uint32_t block, const BlockLabel& label, ByteView payload,
            const Codec& codec);
  std::vector<float> Take() { return std::move(values_); }

 private:
  std::vector<float> values_;
  std::set<uint32_t> missing_;
  absl::Duration due_ = absl::InfiniteDuration();
};

}  // namespace syncline
