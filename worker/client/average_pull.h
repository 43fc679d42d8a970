// A request for the averaged weights of one tensor, or for one array of its optimizer
// state. It collects the servers' answers block by block.
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
    std::optional<uint32_t> array = {};  // number of the array; empty: averaged weights
  };
  // REQUIRES: no request is under way.
  void Begin(const Wanted& wanted);
  void Cancel() {
    missing_.clear();
    refused_.clear();
  }

  bool is_under_way() const { return !missing_.empty(); }
  const std::set<uint32_t>& missing() const { return missing_; }
  std::optional<uint32_t> array() const { return array_; }

  // Whether all blocks so far are of this version.
  bool IsOfOneVersion(uint64_t version) {
    if (!version_) version_ = version;
    return *version_ == version;
  }

  // The shard refused the request for this block; it is repeated at `due`.
  void Refused(uint32_t block, absl::Duration due) { refused_[block] = due; }
  // Removes and returns the blocks that are due.
  std::vector<uint32_t> TakeDue(absl::Duration now);

  // Takes a block. One that does not parse stays missing.
  void Land(uint32_t block, const BlockLabel& label, ByteView payload,
            const Codec& codec);
  std::vector<float> Take() { return std::move(values_); }

 private:
  std::vector<float> values_;
  std::set<uint32_t> missing_;
  std::optional<uint32_t> array_;
  std::optional<uint64_t> version_;             // of the first block that arrived
  std::map<uint32_t, absl::Duration> refused_;  // missing blocks, and when they are due
};

}  // namespace syncline
