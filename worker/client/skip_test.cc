// Tests of steps in which this worker has no gradient of a tensor.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// Pushes of tensor 0 send its largest value only, with error feedback. Tensor 1 is dense.
class Skips : public ExchangeTest {
 protected:
  Skips() {
    const Transfer topk =
        *ParseTransfer("topk:ratio=0.25,min_elements=0,vectors=1,values=fp32");
    const Transfer fp32 = *ParseTransfer("fp32");
    Make({.transfers = {{.push = topk, .publish = fp32}, {fp32, fp32}}});
    ReachStepZero();
  }

  std::vector<float> Sent(const Seen& seen, uint64_t step) {
    std::vector<float> values(4);
    const Buffer bytes = Gather(seen.sends.at(0).payload);
    const auto view = ParseBlock(bytes.view(), {{0, 0, 4}, step, 3},
                                 options_.transfers[0].push.Accepted());
    EXPECT_TRUE(view.ok()) << view.status();
    if (!view.ok()) return values;
    const TileView& tile = view->tiles.at(0);
    EXPECT_TRUE(tile.codec->Decode(tile.bytes, values).ok());
    return values;
  }
};

TEST_F(Skips, CarryNoSamplesAndNoPayload) {
  const Seen seen = See(exchange_->Skip(0, now_));
  ASSERT_THAT(seen.Messages(), ElementsAre(Pair(MessageKind::kPush, 0u)));
  EXPECT_EQ(seen.sends[0].header.samples, 0u);
  EXPECT_EQ(seen.sends[0].header.step, 0u);
  EXPECT_TRUE(seen.sends[0].payload.empty());
  EXPECT_FALSE(seen.sends[0].borrows_gradient);
  EXPECT_EQ(exchange_->stats().pushed_values, 0u);
  EXPECT_THAT(PublishUnchanged(0, 1).ready, ElementsAre(0u));
}

TEST_F(Skips, AreRepeatedAsTheyAre) {
  See(exchange_->Skip(0, now_));
  const Seen again = Reconnect();
  ASSERT_THAT(again.Messages(), ElementsAre(Pair(MessageKind::kPush, 0u)));
  EXPECT_EQ(again.sends[0].header.samples, 0u);
  const Seen renamed = Refuse(RefuseCode::kStaleEpoch, 0, 0, 4);
  ASSERT_THAT(renamed.Messages(), ElementsAre(Pair(MessageKind::kPush, 0u)));
  EXPECT_EQ(renamed.sends[0].header.epoch, 4u);
  EXPECT_TRUE(renamed.sends[0].payload.empty());
}

TEST_F(Skips, KeepWhatCompressionHasKept) {
  See(exchange_->Push(0, gradient_, 7, now_));  // sends 4 of {1, 2, 3, 4}
  PublishUnchanged(0, 1);
  See(exchange_->Skip(0, now_));
  PublishUnchanged(0, 2);
  // 3 + 3 is the largest now.
  const Seen seen = See(exchange_->Push(0, gradient_, 7, now_));
  EXPECT_THAT(Sent(seen, 2), ElementsAre(0, 0, 6, 0));
}

TEST_F(Skips, LeaveToPartingWhatEarlierGradientsLost) {
  See(exchange_->Push(0, gradient_, 7, now_));
  PublishUnchanged(0, 1);
  See(exchange_->Skip(0, now_));
  PublishUnchanged(0, 2);
  const Seen seen = See(exchange_->Part(now_));
  ASSERT_THAT(seen.Messages(), ElementsAre(Pair(MessageKind::kPush, 0u)));
  EXPECT_EQ(seen.sends[0].header.flags, kFlagParting);
  EXPECT_EQ(seen.sends[0].header.samples, 7u);
  EXPECT_FALSE(seen.sends[0].payload.empty());
}

TEST_F(Skips, OfAWorkerThatNeverPushedLeaveNothingToPartWith) {
  See(exchange_->Skip(0, now_));
  PublishUnchanged(0, 1);
  const Seen seen = See(exchange_->Part(now_));
  EXPECT_THAT(seen.Messages(), IsEmpty());
  EXPECT_EQ(seen.parted, 1);
}

}  // namespace
}  // namespace syncline
