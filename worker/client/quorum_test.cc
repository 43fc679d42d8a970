// Tests of exchanges in jobs whose steps are closed by a quorum.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Messages = std::vector<std::pair<MessageKind, uint32_t>>;

class QuorumExchangeTest : public ExchangeTest {
 protected:
  QuorumExchangeTest() { Begin({}); }
  void Begin(ExchangeOptions options) {
    options.mode = {.quorum = 1};
    Make(std::move(options));
    ReachStepZero();
  }
  Seen View(uint32_t block, uint64_t version, float value, uint16_t flags = 0) {
    std::vector<float> values(block == 0 ? 4 : 2, value);
    const BlockRange range{block, 0, static_cast<uint32_t>(values.size())};
    const Buffer payload =
        Gather(EncodeBlock(*options_.transfers[block].publish.codec, {range, version, 3},
                           values, Checksum::kHeaderAndPayload, pool_));
    MessageHeader header = From(MessageKind::kPublish, block, version);
    header.flags = flags;
    return Answer(header, payload.view());
  }
  Seen PushBoth() {
    Seen seen = See(exchange_->Push(0, gradient_, 1, now_));
    Seen second =
        See(exchange_->Push(1, std::span<const float>(gradient_).first(2), 1, now_));
    for (ExchangeSend& send : second.sends) seen.sends.push_back(std::move(send));
    for (const uint32_t ready : second.ready) seen.ready.push_back(ready);
    for (const ExchangeSend& send : seen.sends) {
      if (send.borrows_gradient) See(exchange_->SendDone(send.header.block));
    }
    return seen;
  }
};

TEST_F(QuorumExchangeTest, GoesOnWhereItsContributionCounts) {
  EXPECT_THAT(PushBoth().Messages(), ElementsAre(std::pair{MessageKind::kPush, 0u},
                                                 std::pair{MessageKind::kPush, 1u}));
  EXPECT_THAT(View(0, 1, 3.0f, kFlagCounted).ready, ElementsAre(0u))
      << "whether or not the acknowledgement has come";
  Answer(From(MessageKind::kAck, 1, 0));
  EXPECT_THAT(View(1, 1, 3.0f, kFlagCounted).ready, ElementsAre(1u));
  EXPECT_EQ(exchange_->step(), 1u);
  EXPECT_EQ(exchange_->stats().late_steps, 0u);
}

TEST_F(QuorumExchangeTest, OneRefusalTellsThatAllOfTheStepIsTooLate) {
  PushBoth();
  Answer(From(MessageKind::kAck, 1, 0));
  EXPECT_THAT(Refuse(RefuseCode::kTooLate, 0, 0).ready, IsEmpty());
  EXPECT_EQ(exchange_->stats().late_steps, 1u);
  EXPECT_THAT(Refuse(RefuseCode::kTooLate, 1, 0).ready, IsEmpty()) << "it is known";
  EXPECT_THAT(View(0, 2, 5.0f).ready, IsEmpty()) << "block 1 is still at 0";
  EXPECT_THAT(View(1, 1, 4.0f).ready, IsEmpty());
  EXPECT_THAT(View(1, 2, 6.0f).ready, UnorderedElementsAre(0u, 1u))
      << "both hold the newest";
  EXPECT_THAT(first_, Each(5.0f));
  EXPECT_THAT(second_, Each(6.0f));
  EXPECT_EQ(exchange_->step(), 2u);
  EXPECT_EQ(PushBoth().sends.at(0).header.step, 2u);
}

TEST_F(QuorumExchangeTest, AViewThatDoesNotCountItSaysTheSame) {
  PushBoth();
  EXPECT_THAT(View(0, 1, 3.0f).ready, IsEmpty());
  EXPECT_EQ(exchange_->stats().late_steps, 1u);
  EXPECT_THAT(View(1, 1, 4.0f).ready, UnorderedElementsAre(0u, 1u));
  EXPECT_EQ(exchange_->step(), 1u);
}

TEST_F(QuorumExchangeTest, WhoeverHearsOfALaterVersionWhileComputingSendsNothing) {
  EXPECT_THAT(View(0, 1, 3.0f).ready, IsEmpty());
  EXPECT_THAT(View(0, 2, 4.0f).ready, IsEmpty());
  EXPECT_THAT(View(1, 2, 5.0f).ready, IsEmpty());
  EXPECT_THAT(first_, Each(1.0f)) << "the caller reads them";
  const Seen pushed = PushBoth();
  EXPECT_THAT(pushed.Messages(), IsEmpty());
  EXPECT_THAT(pushed.ready, UnorderedElementsAre(0u, 1u)) << "the views have come";
  EXPECT_THAT(first_, Each(4.0f));
  EXPECT_EQ(exchange_->step(), 2u);
}

TEST_F(QuorumExchangeTest, AsksWhatBecameOfItWhereTheViewThatSaidSoIsGone) {
  PushBoth();
  Answer(From(MessageKind::kAck, 0, 0));
  Answer(From(MessageKind::kAck, 1, 0));
  const Seen later = View(0, 3, 9.0f, kFlagCounted);  // the flag is for step 2
  EXPECT_THAT(later.Messages(), ElementsAre(std::pair{MessageKind::kPush, 0u}));
  EXPECT_THAT(later.ready, IsEmpty());
  See(exchange_->SendDone(0));
  MessageHeader counted = From(MessageKind::kAck, 0, 0);
  counted.flags = kFlagCounted;
  EXPECT_THAT(Answer(counted).ready, ElementsAre(0u));
  EXPECT_THAT(first_, Each(9.0f));
}

TEST_F(QuorumExchangeTest, BeginsWhereAllBlocksHoldOneVersion) {
  Make({.first_step = 4, .mode = {.quorum = 1}});
  See(exchange_->Start(now_));
  EXPECT_THAT(View(0, 5, 1.0f).ready, IsEmpty());
  EXPECT_THAT(View(1, 4, 1.0f).ready, IsEmpty()) << "the others are further";
  EXPECT_THAT(View(1, 5, 1.0f).ready, UnorderedElementsAre(0u, 1u));
  EXPECT_EQ(exchange_->step(), 5u);
}

TEST_F(QuorumExchangeTest, SettlesWithTheNewest) {
  Seen settling = See(exchange_->Settle(0, now_));
  ASSERT_THAT(settling.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(settling.sends[0].header.flags, kFlagResend);
  EXPECT_THAT(View(0, 3, 8.0f).ready, IsEmpty());
  See(exchange_->Settle(1, now_));
  EXPECT_THAT(View(1, 3, 8.0f).ready, UnorderedElementsAre(0u, 1u));
  EXPECT_THAT(first_, Each(8.0f));
  EXPECT_EQ(exchange_->step(), 3u);
  EXPECT_EQ(exchange_->stats().late_steps, 0u);
}

TEST_F(QuorumExchangeTest, ErrorFeedbackTakesBackWhatWasTooLateSentOrNot) {
  for (const bool was_sent : {true, false}) {
    const TensorTransfers topk = {
        *ParseTransfer("topk:min_elements=0,vectors=1,ratio=0.25"),
        *ParseTransfer("fp32")};
    Begin({.transfers = {topk, topk}});
    if (was_sent) {
      PushBoth();
      Refuse(RefuseCode::kTooLate, 0, 0);
    } else {
      View(0, 1, 3.0f);
      EXPECT_THAT(PushBoth().Messages(), ElementsAre(std::pair{MessageKind::kPull, 1u}));
    }
    const auto kept = exchange_->memory(0).residual();
    EXPECT_THAT(std::vector<float>(kept.begin(), kept.end()), ElementsAre(1, 2, 3, 4))
        << "all of the gradient, " << (was_sent ? "sent" : "not sent");
  }
}

TEST_F(QuorumExchangeTest, WhatALeaverHandsOverGoesToALaterStepWhereItIsTooLate) {
  const TensorTransfers topk = {
      *ParseTransfer("topk:min_elements=0,vectors=1,ratio=0.25"), *ParseTransfer("fp32")};
  Begin({.transfers = {topk, topk}});
  PushBoth();
  View(0, 1, 3.0f, kFlagCounted);
  View(1, 1, 3.0f, kFlagCounted);
  const Seen parting = See(exchange_->Part(now_));
  ASSERT_THAT(parting.Messages(), ElementsAre(std::pair{MessageKind::kPush, 0u},
                                              std::pair{MessageKind::kPush, 1u}));
  EXPECT_EQ(Answer(From(MessageKind::kAck, 1, 1)).parted, 0);
  EXPECT_THAT(Refuse(RefuseCode::kTooLate, 0, 1).Messages(),
              ElementsAre(std::pair{MessageKind::kPull, 0u}));
  const Seen again = View(0, 2, 4.0f);
  ASSERT_THAT(again.Messages(), ElementsAre(std::pair{MessageKind::kPush, 0u}));
  EXPECT_EQ(again.sends[0].header.step, 2u);
  EXPECT_EQ(again.sends[0].header.flags, kFlagParting);
  EXPECT_EQ(Answer(From(MessageKind::kAck, 0, 2)).parted, 1);
}

}  // namespace
}  // namespace syncline
