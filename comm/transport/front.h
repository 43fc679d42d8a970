// Front knows which block the next forward pass waits for. Forward goes from the first
// block to the last, and backward the other way. The next forward pass therefore waits
// for the first block that lacks its message of this step, and gains nothing from a block
// behind it.
//
//   front.Expect(block, first_step);            // for each block that will have messages
//   if (front.IsNext(block, step)) SendFirst();
//   front.Sent(block, step);
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

namespace syncline {

class Front {
 public:
  // Says that the next message of the block is that of `step`.
  void Expect(uint32_t block, uint64_t step) {
    Forget(block);
    steps_[block] = step;
    expected_.insert({step, block});
  }
  void Sent(uint32_t block, uint64_t step) { Expect(block, step + 1); }
  void Forget(uint32_t block) {
    const auto found = steps_.find(block);
    if (found == steps_.end()) return;
    expected_.erase({found->second, block});
    steps_.erase(found);
  }

  // Returns true if all blocks before this one have had their message of `step`. Blocks
  // that are at another step, such as frozen ones, do not count.
  bool IsNext(uint32_t block, uint64_t step) const {
    const auto first = expected_.lower_bound({step, 0});
    return first == expected_.end() || first->first != step || first->second >= block;
  }

 private:
  std::unordered_map<uint32_t, uint64_t> steps_;
  std::set<std::pair<uint64_t, uint32_t>> expected_;  // step, block
};

}  // namespace syncline
