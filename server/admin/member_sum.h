// The sum of a count over all members of a job. The count of a member starts at 0 in each
// of its processes and ends with the process. The sum never decreases.
//
//   MemberSum samples;
//   samples.Add(view.members, &MemberView::samples);  // from time to time
//   samples.sum();
//
// What a process counted between the last Add and its end is missing from the sum.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "server/coordinator/views.h"

namespace syncline {

class MemberSum {
 public:
  void Add(const std::vector<MemberView>& members, uint64_t MemberView::*figure);
  uint64_t sum() const { return sum_; }

 private:
  // By rank: count of its present process at the last Add.
  std::map<uint32_t, uint64_t> of_members_;
  uint64_t sum_ = 0;
};

}  // namespace syncline
