// Tests of modes in which a worker may run ahead of the others.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StaleExchangeTest : public ExchangeTest {
 protected:
  StaleExchangeTest() {
    Make({.mode = {.kind = SyncMode::Kind::kSsp, .staleness = 1}});
    ReachStepZero();
  }
  // Pushes the tensor's next step, and acknowledges it.
  Seen PushAndHold(uint64_t step) {
    const Seen pushed = See(exchange_->Push(0, gradient_, 1, now_));
    EXPECT_EQ(pushed.sends.at(0).header.step, step);
    See(exchange_->SendDone(0));
    return Answer(From(MessageKind::kAck, 0, step));
  }
};

TEST_F(StaleExchangeTest, IsReadyOnceItsContributionIsHeldUpToTheLimit) {
  EXPECT_THAT(PushAndHold(0).ready, ElementsAre(0u)) << "one step ahead";
  const Seen second = PushAndHold(1);
  EXPECT_THAT(second.ready, IsEmpty()) << "two steps ahead";
  ASSERT_THAT(second.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(second.sends[0].header.step, 1u) << "what is enough to go on";
  EXPECT_THAT(Publish(0, 1, 3.0f).ready, ElementsAre(0u));
  EXPECT_THAT(first_, Each(3.0f));
}

TEST_F(StaleExchangeTest, AViewThatComesWhileTheCallerComputesWaitsForThePush) {
  PushAndHold(0);
  EXPECT_THAT(Publish(0, 1, 3.0f).ready, IsEmpty());
  EXPECT_THAT(first_, Each(1.0f)) << "the caller reads them";
  EXPECT_EQ(exchange_->version_of(0), 0u);
  EXPECT_THAT(PushAndHold(1).ready, ElementsAre(0u)) << "with it, it is fresh enough";
  EXPECT_THAT(first_, Each(3.0f));
  EXPECT_EQ(exchange_->version_of(0), 1u);
}

TEST_F(StaleExchangeTest, AViewOfAnEarlierStepIsNoAcknowledgement) {
  PushAndHold(0);
  See(exchange_->Push(0, gradient_, 1, now_));
  See(exchange_->SendDone(0));
  EXPECT_THAT(Publish(0, 1, 3.0f).ready, IsEmpty()) << "step 1 may be lost";
  EXPECT_THAT(first_, Each(3.0f));
  EXPECT_THAT(Reconnect().Messages(), ElementsAre(std::pair{MessageKind::kPush, 0u}));
  See(exchange_->SendDone(0));
  EXPECT_THAT(Publish(0, 2, 4.0f).ready, ElementsAre(0u)) << "this one has counted it";
}

TEST_F(StaleExchangeTest, SettlesAtWhatItHasContributedTo) {
  PushAndHold(0);
  const Seen settling = See(exchange_->Settle(0, now_));
  EXPECT_THAT(settling.ready, IsEmpty());
  ASSERT_THAT(settling.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(settling.sends[0].header.step, 1u);
  EXPECT_THAT(Publish(0, 1, 3.0f).ready, ElementsAre(0u));
  EXPECT_THAT(first_, Each(3.0f));
  EXPECT_THAT(See(exchange_->Settle(0, now_)).ready, ElementsAre(0u)) << "it is there";
  EXPECT_THAT(PushAndHold(1).ready, ElementsAre(0u));
}

TEST_F(StaleExchangeTest, GoesOnAtOnceWhenItMayBeFurtherAhead) {
  PushAndHold(0);
  EXPECT_THAT(PushAndHold(1).ready, IsEmpty());
  EXPECT_THAT(See(exchange_->SetStaleness(2, now_)).ready, ElementsAre(0u));
  EXPECT_THAT(See(exchange_->SetStaleness(2, now_)).ready, IsEmpty()) << "said again";
  EXPECT_THAT(PushAndHold(2).ready, IsEmpty()) << "three steps ahead";
}

// After this request the servers count the worker as waiting.
TEST_F(StaleExchangeTest, AsksForWhatIsEnoughWhenThatIsLessThanBefore) {
  PushAndHold(0);
  PushAndHold(1);
  See(exchange_->SetStaleness(0, now_));
  Publish(0, 1, 3.0f);
  EXPECT_THAT(PushAndHold(2).ready, IsEmpty());
  const Seen more = See(exchange_->SetStaleness(1, now_));
  EXPECT_THAT(more.ready, IsEmpty());
  ASSERT_THAT(more.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(more.sends[0].header.step, 2u);
  EXPECT_THAT(Publish(0, 2, 3.0f).ready, ElementsAre(0u));
}

TEST_F(StaleExchangeTest, WaitsForEverybodyFromItsNextStepOnWithoutStaleness) {
  EXPECT_THAT(PushAndHold(0).ready, ElementsAre(0u));
  EXPECT_THAT(See(exchange_->SetStaleness(0, now_)).ready, IsEmpty());
  const Seen second = PushAndHold(1);
  EXPECT_THAT(second.ready, IsEmpty());
  ASSERT_THAT(second.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(second.sends[0].header.step, 2u);
  EXPECT_THAT(Publish(0, 1, 3.0f).ready, IsEmpty());
  EXPECT_THAT(Publish(0, 2, 4.0f).ready, ElementsAre(0u));
  EXPECT_THAT(first_, Each(4.0f));
}

TEST_F(StaleExchangeTest, RunsAheadAlthoughItBeganWithoutStaleness) {
  Make({.mode = {.kind = SyncMode::Kind::kSsp, .staleness = 0}});
  ReachStepZero();
  EXPECT_THAT(PushAndHold(0).ready, IsEmpty());
  EXPECT_THAT(See(exchange_->SetStaleness(1, now_)).ready, ElementsAre(0u));
  EXPECT_THAT(Publish(0, 1, 3.0f).ready, IsEmpty()) << "the caller computes";
  EXPECT_THAT(PushAndHold(1).ready, ElementsAre(0u));
  EXPECT_THAT(first_, Each(3.0f));
}

TEST_F(ExchangeTest, InOtherModesNoStalenessIsTaken) {
  ReachStepZero();
  See(exchange_->SetStaleness(3, now_));
  See(exchange_->Push(0, gradient_, 1, now_));
  See(exchange_->SendDone(0));
  EXPECT_THAT(Answer(From(MessageKind::kAck, 0, 0)).ready, IsEmpty());
}

class AsyncExchangeTest : public ExchangeTest {
 protected:
  AsyncExchangeTest() {
    Make({.first_step = 7, .mode = {.kind = SyncMode::Kind::kAsp}});
    ReachStepZero();
  }
};

TEST_F(AsyncExchangeTest, CountsItsOwnStepsAndTakesTheViewThatFollowsItsContribution) {
  const Seen pushed = See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_EQ(pushed.sends.at(0).header.step, 7u) << "whatever the version";
  See(exchange_->SendDone(0));
  EXPECT_THAT(Publish(0, 30, 3.0f).ready, IsEmpty()) << "an answer to something else";
  EXPECT_THAT(first_, Each(1.0f));
  Answer(From(MessageKind::kAck, 0, 7));
  EXPECT_THAT(Publish(0, 31, 4.0f).ready, ElementsAre(0u));
  EXPECT_THAT(first_, Each(4.0f));
  EXPECT_EQ(See(exchange_->Push(0, gradient_, 1, now_)).sends.at(0).header.step, 8u);
}

TEST_F(AsyncExchangeTest, SettlesWithAViewThatIsSentAnew) {
  const Seen settling = See(exchange_->Settle(0, now_));
  ASSERT_THAT(settling.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(settling.sends[0].header.flags, kFlagResend);
  EXPECT_THAT(Publish(0, 0, 9.0f).ready, ElementsAre(0u)) << "nobody has contributed";
}

}  // namespace
}  // namespace syncline
