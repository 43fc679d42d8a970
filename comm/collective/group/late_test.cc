// Tests what the ranks of a group learn about an operation that was late.
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

// A process that ends settles, although it still waits for data that no rank sends.
TEST(Group, SettlesWhileAReceiveIsPending) {
  const auto statuses = RunMembers(
      {.ranks = 2, .per_host = 1, .failure_timeout = absl::Minutes(2)}, [](Group& group) {
        float value = 1;
        float never = 0;
        const auto message = [&](int from, int tag, float& memory) {
          return Call{.op = CollectiveOp::kSendReceive,
                      .input = &memory,
                      .output = &memory,
                      .count = 1,
                      .root = 1 - from,
                      .source = from,
                      .tag = static_cast<uint32_t>(tag),
                      .timeout = absl::Seconds(30)};
        };
        if (group.rank() == 0) return group.Run(message(1, 0, value));
        const auto receives = group.Start(message(0, 7, never));
        group.Settle();
        return receives.ok() ? group.Run(message(1, 0, value)) : receives.status();
      });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
}

// Ranks per host; 0: all on one host.
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
          // When this has arrived, rank 1 has started the call before it.
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

// Each root would be done after giving everything. Up to 2 KiB use the board of a host.
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
