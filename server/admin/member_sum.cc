#include "server/admin/member_sum.h"

#include <utility>

namespace syncline {

void MemberSum::Add(const std::vector<MemberView>& members,
                    uint64_t MemberView::*figure) {
  std::map<uint32_t, uint64_t> now;
  for (const MemberView& member : members) {
    const auto known = of_members_.find(member.rank);
    const uint64_t before = known == of_members_.end() ? 0 : known->second;
    const uint64_t count = member.*figure;
    sum_ += count >= before ? count - before : count;
    now[member.rank] = count;
  }
  of_members_ = std::move(now);
}

}  // namespace syncline
