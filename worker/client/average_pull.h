// The averaged weights of one tensor, or an array of its optimizer's state, on their way from
// the servers, block by block.
//
// Thread safety: none; the exchange owns it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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
    std::optional<uint32_t> array = {};  // of the state; nothing: the averaged weights
  };
  // REQUIRES: nothing is under way.
  void Begin(const Wanted& wanted);
  void Cancel() {
    missing_.clear();
    refused_.clear();
  }

  bool is_under_way() const { return !missing_.empty(); }
  const std::set<uint32_t>& missing() const { return missing_; }
  std::optional<uint32_t> array() const { return array_; }

  // Whether all that has come is of this version.
  bool IsOfOneVersion(uint64_t version) {
    if (!version_) version_ = version;
    return *version_ == version;
  }

  // The question for this block was refused: it is to be asked again at `due`.
  void Refused(uint32_t block, absl::Duration due) { refused_[block] = due; }
  // Removes and returns what is to be asked again.
  std::vector<uint32_t> TakeDue(absl::Duration now);

  // A block came. What does not parse stays missing.
  void Land(uint32_t block, const BlockLabel& label, ByteView payload,
            const Codec& codec);
  std::vector<float> Take() { return std::move(values_); }

 private:
  std::vector<float> values_;
  std::set<uint32_t> missing_;
  std::optional<uint32_t> array_;
  std::optional<uint64_t> version_;             // of the first block that came
  std::map<uint32_t, absl::Duration> refused_;  // of the missing ones
};

}  // namespace syncline
