// What the ranks of a group hear of an operation that was late.
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/collective/group/group.h"
#include "comm/collective/group/members_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// 0: on one host; otherwise so many ranks on each.
class LateOperation : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Group, LateOperation, testing::Values(0, 1));

TEST_P(LateOperation, IsNamedToWhoeverIsInAnotherOneWithItsOwn) {
  const auto statuses =
      RunMembers({.ranks = 2, .per_host = GetParam()}, [](Group& group) {
        float value = 1;
        float never = 0;
        Call late = {.output = &value, .count = 1, .timeout = absl::Milliseconds(100)};
        const Call send = {.op = CollectiveOp::kSendReceive,
                           .input = &value,
                           .output = &value,
                           .count = 1,
                           .root = 0,
                           .source = 1};
        if (group.rank() == 0) {
          // Once it is here, rank 1 has begun what it began before.
          const absl::Status received = group.Run(send);
          return received.ok() ? group.Run(late) : received;
        }
        const auto receives = group.Start({.op = CollectiveOp::kSendReceive,
                                           .output = &never,
                                           .count = 1,
                                           .root = 1,
                                           .source = 0,
                                           .tag = 7});
        const auto sends = group.Start(send);
        if (!receives.ok() || !sends.ok()) return absl::InternalError("no start");
        return group.Wait(*receives, absl::InfiniteDuration());
      });
  const std::string late(statuses[0].message());
  EXPECT_THAT(late, HasSubstr("rank 1 did not take part in all_reduce (sum) number "));
  EXPECT_THAT(late, Not(HasSubstr("this rank was in")));
  EXPECT_EQ(FailedRank(statuses[1]), 1) << statuses[1];
  EXPECT_THAT(
      std::string(statuses[1].message()),
      AllOf(HasSubstr("did not take part in all_reduce (sum) number "),
            HasSubstr("; this rank was in send_receive number 1 of 1 f32 by direct "
                      "from rank 0 to 1 with tag 7")));
}

// Each would be done by giving all that it has. Up to 2 KiB go over the board of a host.
TEST_P(LateOperation, RootsThatNameThemselvesHearOfEachOther) {
  for (const CollectiveOp op : {CollectiveOp::kBroadcast, CollectiveOp::kScatter}) {
    for (const size_t count : {1, 5000, 300000}) {
      const auto statuses =
          RunMembers({.ranks = 2, .per_host = GetParam()}, [&](Group& group) {
            std::vector<float> in(2 * count);
            std::vector<float> out(2 * count);
            return group.Run({.op = op,
                              .input = in.data(),
                              .output = out.data(),
                              .count = count,
                              .root = group.rank()});
          });
      for (const absl::Status& status : statuses) {
        EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status << count;
        EXPECT_THAT(std::string(status.message()), HasSubstr("with root 1"));
      }
    }
  }
}

}  // namespace
}  // namespace syncline::collective
