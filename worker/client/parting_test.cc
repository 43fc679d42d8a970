// Tests of the error feedback that a worker sends when it leaves.
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// Pushes of tensor 0 send its largest value only, with error feedback. Tensor 1 is dense.
class Parting : public ExchangeTest {
 protected:
  Parting() {
    const Transfer topk =
        *ParseTransfer("topk:ratio=0.25,min_elements=0,vectors=1,values=fp32");
    const Transfer fp32 = *ParseTransfer("fp32");
    Make({.transfers = {{.push = topk, .publish = fp32}, {fp32, fp32}}});
    ReachStepZero();
  }

  // Pushes {1, 2, 3, 4}, of which 4 is sent.
  void Step(uint64_t step, float learning_rate = 0) {
    See(exchange_->Push(0, gradient_, 7, now_));
    MessageHeader header = From(MessageKind::kPublish, 0, step + 1);
    header.flags = kFlagUnchanged;
    header.samples = std::bit_cast<uint32_t>(1.0f);
    header.shard = std::bit_cast<uint32_t>(learning_rate);
    EXPECT_THAT(Answer(header).ready, ElementsAre(0u));
  }

  std::vector<float> Values(const ExchangeSend& send, uint64_t step, uint64_t epoch = 3) {
    std::vector<float> values(4);
    const Buffer bytes = Gather(send.payload);
    const auto view =
        ParseBlock(bytes.view(), {{0, 0, 4}, step, epoch}, {options_.seed_codec});
    EXPECT_TRUE(view.ok()) << view.status();
    EXPECT_TRUE(options_.seed_codec->Decode(view->tiles.at(0).bytes, values).ok());
    return values;
  }
};

TEST_F(Parting, SendsWhatWasKeptInFp32) {
  Step(0);
  const Seen seen = See(exchange_->Part(now_));
  EXPECT_EQ(seen.parted, 0);
  EXPECT_THAT(seen.Messages(), ElementsAre(Pair(MessageKind::kPush, 0u)));
  const MessageHeader& header = seen.sends.at(0).header;
  EXPECT_EQ(header.flags, kFlagParting);
  EXPECT_EQ(header.samples, 7u);
  EXPECT_EQ(header.step, 1u);
  EXPECT_THAT(Values(seen.sends[0], 1), ElementsAre(1, 2, 3, 0));
}

TEST_F(Parting, IsOverOnceTheServersHoldIt) {
  Step(0);
  See(exchange_->Part(now_));
  EXPECT_EQ(Answer(From(MessageKind::kAck, 0, 0)).parted, 0) << "of an earlier step";
  EXPECT_EQ(Answer(From(MessageKind::kAck, 0, 1)).parted, 1);
  EXPECT_EQ(Answer(From(MessageKind::kAck, 0, 1)).parted, 0) << "said once";
}

TEST_F(Parting, TakesTheNextVersionForAnAnswerAndLeavesTheWeightsAlone) {
  Step(0);
  See(exchange_->Part(now_));
  EXPECT_EQ(Publish(0, 2, 77.0f).parted, 1);
  EXPECT_THAT(first_, Each(1.0f));
}

TEST_F(Parting, SendsAgainOnTheNextConnection) {
  Step(0);
  See(exchange_->Part(now_));
  const Seen again = Reconnect();
  ASSERT_THAT(again.sends, SizeIs(1));
  EXPECT_EQ(again.sends[0].header.flags, kFlagParting);
  EXPECT_THAT(Values(again.sends[0], 1), ElementsAre(1, 2, 3, 0));
  // The values are also the same in another epoch.
  const Seen moved = Refuse(RefuseCode::kStaleEpoch, 0, 1, 4);
  ASSERT_THAT(moved.sends, SizeIs(1));
  EXPECT_THAT(Values(moved.sends[0], 1, 4), ElementsAre(1, 2, 3, 0));
}

TEST_F(Parting, IsOverAtOnceWhenNothingWasKept) {
  const Seen seen = See(exchange_->Part(now_));
  EXPECT_EQ(seen.parted, 1);
  EXPECT_THAT(seen.sends, IsEmpty());
}

TEST_F(Parting, ConvertsToTheUnitsOfTheStepThatTakesIt) {
  options_.follow_learning_rate = true;
  Make(options_);
  ReachStepZero();
  Step(0, 0.5f);   // the rate of step 1
  Step(1, 0.25f);  // the sum is {2, 4, 6, 4} at a rate of 0.5, of which 6 is sent
  const Seen seen = See(exchange_->Part(now_));
  const std::vector<float> values = Values(seen.sends.at(0), 2);
  EXPECT_THAT(values, ElementsAre(4, 8, 0, 8));
}

}  // namespace
}  // namespace syncline
