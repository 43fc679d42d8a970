// Which block is next in front: all blocks before it have had their message of this step.
// The next forward waits for that one, and for none that comes behind a gap, since backward
// goes from the last block to the first and forward the other way.
//
// Thread safety: none.
//
//   front.Expect(block, first_step);            // for all that will have messages
//   if (front.IsNext(block, step)) SendFirst();
//   front.Sent(block, step);
#pragma once

#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

namespace syncline {

class Front {
 public:
  // Its next message is of that step.
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

  // Blocks that stay at another step, as frozen ones do, are not waited for.
  bool IsNext(uint32_t block, uint64_t step) const {
    const auto first = expected_.lower_bound({step, 0});
    return first == expected_.end() || first->first != step || first->second >= block;
  }

 private:
  std::unordered_map<uint32_t, uint64_t> steps_;
  std::set<std::pair<uint64_t, uint32_t>> expected_;  // step, block
};

}  // namespace syncline
