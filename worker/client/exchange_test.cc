// Tests of the exchange against a hand-made shard: messages that it sends and repeats,
// views that it uses, and answers that it ignores.
#include "worker/client/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST_F(ExchangeTest, ReceiverAsksForAllBlocksAndIsReadyWhenTheyLanded) {
  EXPECT_THAT(
      See(exchange_->Start(now_)).Messages(),
      ElementsAre(std::pair{MessageKind::kPull, 0u}, std::pair{MessageKind::kPull, 1u}));
  EXPECT_THAT(Publish(0, 0, 7.5f).ready, ElementsAre(0u));
  EXPECT_THAT(first_, ElementsAre(7.5f, 7.5f, 7.5f, 7.5f));
  EXPECT_FALSE(exchange_->IsReady(1));
}

TEST_F(ExchangeTest, SeederSendsItsValuesAndThenTakesThePublishedView) {
  ExchangeOptions options;
  options.role = SeedRole::kSeeder;
  Make(options);
  const Seen started = See(exchange_->Start(now_));
  EXPECT_THAT(started.Messages(), ElementsAre(std::pair{MessageKind::kSeed, 0u},
                                              std::pair{MessageKind::kSeed, 1u}));
  const MessageHeader ack = From(MessageKind::kAck, 0, started.sends[0].header.step);
  EXPECT_THAT(Answer(ack).Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
}

TEST_F(ExchangeTest, OnlyWhatIsHeldInFrontOfTheNextBlockIsAhead) {
  ReachStepZero();
  const std::span<const float> gradient = gradient_;
  // Backward reaches the last tensor first.
  const Seen last = See(exchange_->Push(1, gradient.first(2), 1, now_));
  ASSERT_EQ(last.sends.size(), 1u);
  Answer(From(MessageKind::kAck, 1, 0));
  const size_t held = PayloadBytes(last.sends[0].payload);
  EXPECT_EQ(exchange_->held_bytes(0), held);
  EXPECT_EQ(exchange_->HeldInFront(0, 1000), held) << "nothing else waits";
  EXPECT_EQ(exchange_->HeldInFront(0, 3), 3u);

  exchange_->SetRoom(0, 0);
  See(exchange_->Push(0, gradient, 1, now_));
  EXPECT_EQ(exchange_->HeldInFront(0, 1000), 0u) << "block 0 is next";
  EXPECT_EQ(exchange_->held_bytes(0), held);
  Publish(1, 1, 3.0f);
  EXPECT_EQ(exchange_->held_bytes(0), 0u);
}

TEST_F(ExchangeTest, WhatTheNextForwardWaitsForIsUrgentAndHasRoomOfItsOwn) {
  ReachStepZero();
  const std::span<const float> gradient = gradient_;
  const Seen last = See(exchange_->Push(1, gradient.first(2), 1, now_));
  ASSERT_EQ(last.sends.size(), 1u);
  EXPECT_EQ(last.sends[0].traffic_class, TrafficClass::kOther) << "backward goes on";
  exchange_->SetRoom(0, 0, 1);  // that block uses up the room
  const Seen front = See(exchange_->Push(0, gradient, 1, now_));
  ASSERT_EQ(front.sends.size(), 1u);
  EXPECT_EQ(front.sends[0].traffic_class, TrafficClass::kUrgent);

  for (const uint32_t block : {0u, 1u}) See(exchange_->SendDone(block));
  Publish(0, 1, 3.0f);
  Publish(1, 1, 3.0f);
  exchange_->SetRoom(0, 0, 1);
  EXPECT_TRUE(See(exchange_->Push(1, gradient.first(2), 1, now_)).sends.empty());
  exchange_->SetRoom(0, 1, 0);
  const Seen late = See(exchange_->Pump(now_));
  ASSERT_EQ(late.sends.size(), 1u);
  EXPECT_EQ(late.sends[0].traffic_class, TrafficClass::kOther);
}

TEST_F(ExchangeTest, SeederSendsTheStateOfTheOptimizerBeforeItsValues) {
  const std::vector<float> mean(4, 0.5f), variance(4, 0.25f);
  ExchangeOptions options;
  options.role = SeedRole::kSeeder;
  options.seed_states = {{.updates = 9, .arrays = {mean, variance}}, {}};
  Make(options);
  const auto ack = [&](const ExchangeSend& sent) {
    return Answer(From(MessageKind::kAck, 0, sent.header.step));
  };
  const Seen first = See(exchange_->Start(now_));
  ASSERT_THAT(first.Messages(), ElementsAre(std::pair{MessageKind::kSeedState, 0u},
                                            std::pair{MessageKind::kSeed, 1u}));
  EXPECT_EQ(first.sends[0].header.samples, 0u);
  EXPECT_EQ(first.sends[0].header.shard, 9u);
  const Seen second = ack(first.sends[0]);
  ASSERT_THAT(second.Messages(), ElementsAre(std::pair{MessageKind::kSeedState, 0u}));
  EXPECT_EQ(second.sends[0].header.samples, 1u);
  const Buffer bytes = Gather(second.sends[0].payload);
  const auto view = ParseBlock(bytes.view(), {{0, 0, 4}, 0, 3}, {options_.seed_codec});
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<float> sent(4);
  ASSERT_TRUE(options_.seed_codec->Decode(view->tiles[0].bytes, sent).ok());
  EXPECT_EQ(sent, variance);
  EXPECT_THAT(ack(first.sends[0]).Messages(), IsEmpty()) << "that of the first array";
  EXPECT_THAT(Reconnect().Messages(),
              UnorderedElementsAre(std::pair{MessageKind::kSeedState, 0u},
                                   std::pair{MessageKind::kSeed, 1u}));
  const Seen values = ack(second.sends[0]);
  ASSERT_THAT(values.Messages(), ElementsAre(std::pair{MessageKind::kSeed, 0u}));
  EXPECT_THAT(ack(values.sends[0]).Messages(),
              ElementsAre(std::pair{MessageKind::kPull, 0u}));
}

TEST_F(ExchangeTest, SeederSendsAllStateAgainWhereAnotherOneHadBegun) {
  const std::vector<float> mean(4, 0.5f);
  ExchangeOptions options;
  options.role = SeedRole::kSeeder;
  options.seed_states = {{.updates = 9, .arrays = {mean}}, {}};
  Make(options);
  const Seen state = See(exchange_->Start(now_));
  EXPECT_EQ(state.sends.at(1).header.samples, 0u) << "this one has no state";
  const Seen values = Answer(From(MessageKind::kAck, 0, state.sends[0].header.step));
  ASSERT_THAT(values.Messages(), ElementsAre(std::pair{MessageKind::kSeed, 0u}));
  EXPECT_EQ(values.sends[0].header.samples, 9u) << "updates";
  EXPECT_THAT(Refuse(RefuseCode::kNotSeeded, 0, 0).Messages(), IsEmpty());
  now_ += absl::Seconds(1);
  const Seen again = See(exchange_->Tick(now_));
  ASSERT_THAT(again.Messages(), ElementsAre(std::pair{MessageKind::kSeedState, 0u}));
  EXPECT_EQ(again.sends[0].header.samples, 0u);
}

TEST_F(ExchangeTest, SeedAcknowledgementDoesNotPassForOneOfAContribution) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 8, now_));
  Answer(From(MessageKind::kAck, 0, ~uint64_t{0}));
  EXPECT_FALSE(exchange_->AllHeld());
  Answer(From(MessageKind::kAck, 0, 0));
  EXPECT_TRUE(exchange_->AllHeld());
}

TEST_F(ExchangeTest, ContributionCarriesItsNameAndSamples) {
  ReachStepZero();
  const Seen pushed = See(exchange_->Push(0, gradient_, 8, now_));
  ASSERT_EQ(pushed.sends.size(), 1u);
  const MessageHeader& header = pushed.sends[0].header;
  EXPECT_EQ(header.step, 0u);
  EXPECT_EQ(header.samples, 8u);
  EXPECT_EQ(header.epoch, 3u);
  const Buffer bytes = Gather(pushed.sends[0].payload);
  const auto view = ParseBlock(bytes.view(), {{0, 0, 4}, 0, 3}, {options_.seed_codec});
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<float> sent(4);
  ASSERT_TRUE(view->tiles[0].codec->Decode(view->tiles[0].bytes, sent).ok());
  EXPECT_EQ(sent, gradient_);
}

TEST_F(ExchangeTest, TensorIsNotReadyWhileItsGradientIsStillBeingSent) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_THAT(Publish(0, 1, 3.0f).ready, IsEmpty());
  EXPECT_THAT(See(exchange_->SendDone(0)).ready, ElementsAre(0u));
  EXPECT_EQ(exchange_->step(), 0u) << "the other tensor is still at version 0";
}

TEST_F(ExchangeTest, RepeatsNothingWhileTheConnectionLasts) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  now_ += absl::Hours(1);
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(), IsEmpty());
  Answer(From(MessageKind::kAck, 0, 0));
  now_ += absl::Hours(1);
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(), IsEmpty());
  EXPECT_EQ(exchange_->stats().resent_blocks, 0u);
}

TEST_F(ExchangeTest, ANewConnectionCarriesWhatWasUnderWayAndAsksForWhatIsHeld) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_THAT(Reconnect().Messages(), ElementsAre(std::pair{MessageKind::kPush, 0u}));
  EXPECT_EQ(exchange_->stats().resent_blocks, 1u);
  Answer(From(MessageKind::kAck, 0, 0));
  const Seen asked = Reconnect();
  ASSERT_THAT(asked.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(asked.sends[0].header.step, 1u);
  EXPECT_EQ(asked.sends[0].header.flags, 0) << "what it sent could be used";
  EXPECT_THAT(Publish(0, 1, 2.0f).ready, IsEmpty()) << "both sends read the gradient";
  See(exchange_->SendDone(0));
  EXPECT_THAT(See(exchange_->SendDone(0)).ready, ElementsAre(0u));
}

TEST_F(ExchangeTest, SendsNothingWithoutAConnection) {
  exchange_->Disconnected(0);
  EXPECT_THAT(See(exchange_->Start(now_)).Messages(), IsEmpty());
  EXPECT_THAT(
      See(exchange_->Connected(0, now_)).Messages(),
      ElementsAre(std::pair{MessageKind::kPull, 0u}, std::pair{MessageKind::kPull, 1u}));
  Publish(0, 0, 1.0f);
  Publish(1, 0, 2.0f);
  exchange_->Disconnected(0);
  EXPECT_THAT(See(exchange_->Push(0, gradient_, 1, now_)).Messages(), IsEmpty());
  EXPECT_THAT(See(exchange_->PullAverage(1)).Messages(), IsEmpty());
  EXPECT_THAT(See(exchange_->Connected(0, now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPullAverage, 1u},
                          std::pair{MessageKind::kPush, 0u}));
}

TEST_F(ExchangeTest, CountsWhatIsNotAcknowledged) {
  ReachStepZero();
  EXPECT_EQ(exchange_->unacknowledged_bytes(0), 0u);
  const Seen pushed = See(exchange_->Push(0, gradient_, 1, now_));
  const size_t bytes = PayloadBytes(pushed.sends.at(0).payload);
  EXPECT_EQ(exchange_->unacknowledged_bytes(0), bytes);
  Reconnect();
  EXPECT_EQ(exchange_->unacknowledged_bytes(0), bytes);
  Answer(From(MessageKind::kAck, 0, 0));
  EXPECT_EQ(exchange_->unacknowledged_bytes(0), 0u);
}

TEST_F(ExchangeTest, KnowsWhetherTheShardOwesAnAnswer) {
  using Awaits = Exchange::Awaits;
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kNothing);
  See(exchange_->Start(now_));
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kShard);
  Answer(From(MessageKind::kNoted, 0, 0));
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kShard) << "of the other question";
  Answer(From(MessageKind::kNoted, 1, 0));
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kOthers);
  EXPECT_THAT(See(exchange_->Probe(0)).Messages(),
              ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kShard);
  Publish(0, 0, 1.0f);
  Publish(1, 0, 2.0f);
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kNothing);
  See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kShard);
  Answer(From(MessageKind::kAck, 0, 0));
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kOthers);
}

// The shard is writing the seed to a disk or a backup.
TEST_F(ExchangeTest, AShardThatNotesASeedOwesNothingUntilItIsAsked) {
  using Awaits = Exchange::Awaits;
  ExchangeOptions options;
  options.role = SeedRole::kSeeder;
  Make(options);
  const Seen seeds = See(exchange_->Start(now_));
  ASSERT_EQ(seeds.sends.size(), 2u);
  const uint64_t step = seeds.sends[0].header.step;
  Answer(From(MessageKind::kNoted, 0, step));
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kShard) << "of the other one";
  Answer(From(MessageKind::kNoted, 1, step));
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kOthers);
  EXPECT_EQ(exchange_->Probe(0).size(), 1u);
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kShard);
  Answer(From(MessageKind::kNoted, 0, 0));
  EXPECT_EQ(exchange_->WhatIsAwaited(0), Awaits::kOthers);
}

TEST_F(ExchangeTest, FrontTensorOvertakesWhenTheWindowIsFull) {
  ReachStepZero();
  exchange_->SetRoom(0, 1);  // enough for one block
  std::vector<float> small(2, 1.0f);
  EXPECT_THAT(See(exchange_->Push(1, small, 1, now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 1u}));
  EXPECT_THAT(See(exchange_->Push(0, gradient_, 1, now_)).Messages(), IsEmpty());
  EXPECT_THAT(See(exchange_->Pump(now_)).Messages(), IsEmpty());
  exchange_->SetRoom(0, 1);
  EXPECT_THAT(See(exchange_->Pump(now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 0u}));
}

TEST_F(ExchangeTest, AdoptsANewerEpochAndSendsAgain) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  const Seen again = Refuse(RefuseCode::kStaleEpoch, 0, 0, 4);
  ASSERT_THAT(again.Messages(), ElementsAre(std::pair{MessageKind::kPush, 0u}));
  EXPECT_EQ(again.sends[0].header.epoch, 4u);
  // A second refusal of the first message must not send a third.
  EXPECT_THAT(Refuse(RefuseCode::kStaleEpoch, 0, 0, 4).Messages(), IsEmpty());
}

TEST_F(ExchangeTest, WaitsALittleWhenTheShardIsBehind) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_THAT(Refuse(RefuseCode::kFutureEpoch, 0, 0, 2).Messages(), IsEmpty());
  now_ += absl::Milliseconds(10);
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 0u}));
}

TEST_F(ExchangeTest, DroppedWorkerFailsWithAborted) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  const Seen refused = Refuse(RefuseCode::kNotMember, 0, 0, 9);
  ASSERT_EQ(refused.failures.size(), 1u);
  EXPECT_TRUE(absl::IsAborted(refused.failures[0]));
  EXPECT_THAT(std::string(refused.failures[0].message()), HasSubstr("epoch 9"));
  EXPECT_THAT(See(exchange_->Tick(now_ + absl::Minutes(1))).Messages(), IsEmpty());
}

TEST_F(ExchangeTest, RefusedContentFailsAndSaysWhere) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  const Seen refused = Refuse(RefuseCode::kMalformed, 0, 0);
  ASSERT_EQ(refused.failures.size(), 1u);
  EXPECT_THAT(std::string(refused.failures[0].message()),
              HasSubstr("tensor 0 elements [0, 4)"));
}

TEST_F(ExchangeTest, BelievesNoMessageForSomebodyElse) {
  See(exchange_->Start(now_));
  std::vector<float> values(4, 9.0f);
  const Buffer payload =
      Gather(EncodeBlock(*options_.transfers[0].publish.codec, {{0, 0, 4}, 0, 3}, values,
                         Checksum::kHeaderAndPayload, pool_));
  for (auto spoil :
       {+[](MessageHeader& h) { h.session_key = 1; },
        +[](MessageHeader& h) { h.rank = 0; },
        +[](MessageHeader& h) { h.incarnation = 1; },
        +[](MessageHeader& h) { h.job = 6; }, +[](MessageHeader& h) { h.block = 2; }}) {
    MessageHeader header = From(MessageKind::kPublish, 0, 0);
    spoil(header);
    EXPECT_THAT(Answer(header, payload.view()).ready, IsEmpty());
  }
  EXPECT_THAT(first_, ElementsAre(-1.0f, -1.0f, -1.0f, -1.0f));
}

TEST_F(ExchangeTest, DamagedViewLeavesTheWeightsAlone) {
  See(exchange_->Start(now_));
  std::vector<float> values(4, 9.0f);
  Buffer payload =
      Gather(EncodeBlock(*options_.transfers[0].publish.codec, {{0, 0, 4}, 0, 3}, values,
                         Checksum::kHeaderAndPayload, pool_));
  payload.data()[70] ^= std::byte{1};
  EXPECT_THAT(Answer(From(MessageKind::kPublish, 0, 0), payload.view()).ready, IsEmpty());
  EXPECT_THAT(first_, ElementsAre(-1.0f, -1.0f, -1.0f, -1.0f));
}

TEST_F(ExchangeTest, NewSeederSeedsOnlyWhatItHasNotSeen) {
  See(exchange_->Start(now_));
  Publish(0, 0, 1.0f);
  EXPECT_THAT(See(exchange_->EpochChanged(4, SeedRole::kSeeder, now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kSeed, 1u}));
}

TEST_F(ExchangeTest, LateJoinerBeginsAtItsFirstStep) {
  ExchangeOptions options;
  options.first_step = 40;
  Make(options);
  const Seen started = See(exchange_->Start(now_));
  EXPECT_EQ(started.sends[0].header.step, 40u);
  EXPECT_THAT(Publish(0, 39, 1.0f).ready, IsEmpty());
  EXPECT_THAT(Publish(0, 40, 1.0f).ready, ElementsAre(0u));
  const Seen pushed = See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_EQ(pushed.sends[0].header.step, 40u);
}

TEST_F(ExchangeTest, AnUnchangedVersionKeepsTheWeightsAndEndsTheStep) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  See(exchange_->SendDone(0));
  EXPECT_THAT(PublishUnchanged(0, 2).ready, IsEmpty()) << "a version was missed";
  EXPECT_THAT(PublishUnchanged(0, 1).ready, ElementsAre(0u));
  EXPECT_THAT(first_, ElementsAre(1, 1, 1, 1));
}

TEST_F(ExchangeTest, AJoinerIsNotContentWithAnUnchangedVersion) {
  See(exchange_->Start(now_));
  EXPECT_THAT(PublishUnchanged(0, 1).ready, IsEmpty());
}

TEST_F(ExchangeTest, KnowsTheLossScaleOfTheLatestVersion) {
  ReachStepZero();
  EXPECT_EQ(exchange_->loss_scale(), 1);
  See(exchange_->Push(0, gradient_, 1, now_));
  See(exchange_->Push(1, std::span<const float>(gradient_).first(2), 1, now_));
  PublishUnchanged(0, 1, 512);
  EXPECT_EQ(exchange_->loss_scale(), 512);
  PublishUnchanged(1, 1, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(exchange_->loss_scale(), 512) << "nonsense is not believed";
}

TEST_F(ExchangeTest, AFrozenTensorIsReceivedOnceAndDoesNotHoldTheStep) {
  ExchangeOptions options;
  options.first_step = 5;
  options.frozen = {true, false};
  Make(options);
  const Seen start = See(exchange_->Start(now_));
  EXPECT_EQ(start.sends[0].header.step, 0u);
  EXPECT_EQ(start.sends[1].header.step, 5u);
  EXPECT_THAT(Publish(0, 0, 1.0f).ready, ElementsAre(0u));
  Publish(1, 5, 1.0f);
  EXPECT_EQ(exchange_->step(), 5u);
}

TEST_F(ExchangeTest, RepetitionsAreNoProgress) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  const uint64_t before = exchange_->stats().progress_bytes;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(Reconnect().sends.empty());
  }
  EXPECT_EQ(exchange_->stats().progress_bytes, before);
  Answer(From(MessageKind::kAck, 0, 0));
  EXPECT_GT(exchange_->stats().progress_bytes, before);
}

TEST_F(ExchangeTest, AveragesAreAskedForOnceAConnection) {
  ReachStepZero();
  EXPECT_THAT(See(exchange_->PullAverage(0)).Messages(),
              ElementsAre(std::pair{MessageKind::kPullAverage, 0u}));
  EXPECT_THAT(Reconnect().Messages(),
              ElementsAre(std::pair{MessageKind::kPullAverage, 0u}));
  EXPECT_THAT(Refuse(RefuseCode::kStaleEpoch, 0, 0, 9).Messages(), IsEmpty());
  now_ += absl::Milliseconds(20);
  const Seen again = See(exchange_->Tick(now_));
  ASSERT_THAT(again.Messages(), ElementsAre(std::pair{MessageKind::kPullAverage, 0u}));
  EXPECT_EQ(again.sends[0].header.flags, kFlagResend) << "of the same version, maybe";
  EXPECT_EQ(again.sends[0].header.epoch, 9u);
  const Seen seen = SendAverage(0, 0.25f);
  ASSERT_EQ(seen.averages.size(), 1u);
  EXPECT_TRUE(seen.averages[0].status.ok());
  EXPECT_THAT(seen.averages[0].weights, ElementsAre(0.25f, 0.25f, 0.25f, 0.25f));
  EXPECT_THAT(first_, ElementsAre(1, 1, 1, 1)) << "the weights are not touched";
  EXPECT_THAT(SendAverage(0, 0.5f).averages, IsEmpty()) << "a repetition";
}

TEST_F(ExchangeTest, StateIsThatOfTheStepThatTheWorkerIsAt) {
  ReachStepZero();
  See(exchange_->PullState(0, 1));
  const Seen ahead = SendState(0, 1, 0.25f, 1);
  ASSERT_EQ(ahead.averages.size(), 1u);
  EXPECT_TRUE(absl::IsFailedPrecondition(ahead.averages[0].status))
      << ahead.averages[0].status;
  EXPECT_THAT(SendState(0, 1, 0.25f).averages, IsEmpty()) << "nobody asks any more";
  See(exchange_->PullState(0, 1));
  EXPECT_TRUE(SendState(0, 1, 0.25f).averages.at(0).status.ok());
}

TEST_F(ExchangeTest, AnArrayOfTheStateIsTheOneThatWasAskedFor) {
  ReachStepZero();
  const Seen asked = See(exchange_->PullState(0, 1));
  ASSERT_THAT(asked.Messages(), ElementsAre(std::pair{MessageKind::kPullState, 0u}));
  EXPECT_EQ(asked.sends[0].header.samples, 1u);
  EXPECT_THAT(SendAverage(0, 0.5f).averages, IsEmpty());
  EXPECT_THAT(SendState(0, 0, 0.5f).averages, IsEmpty()) << "a late answer";
  const Seen seen = SendState(0, 1, 0.25f);
  ASSERT_EQ(seen.averages.size(), 1u);
  EXPECT_THAT(seen.averages[0].weights, ElementsAre(0.25f, 0.25f, 0.25f, 0.25f));
  EXPECT_EQ(seen.averages[0].updates, 12u);
  See(exchange_->PullState(0, 2));
  const Seen refused = Refuse(RefuseCode::kNoAverage, 0, 0);
  ASSERT_EQ(refused.averages.size(), 1u);
  EXPECT_THAT(std::string(refused.averages[0].status.message()),
              HasSubstr("no array number 2"));
}

TEST_F(ExchangeTest, AJobWithoutAveragesSaysSo) {
  ReachStepZero();
  See(exchange_->PullAverage(0));
  const Seen seen = Refuse(RefuseCode::kNoAverage, 0, 0);
  ASSERT_EQ(seen.averages.size(), 1u);
  EXPECT_EQ(seen.averages[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(seen.failures, IsEmpty());
}

TEST_F(ExchangeTest, LandsNothingThatNobodyAskedFor) {
  ReachStepZero();
  Publish(0, 5, 9.0f);
  EXPECT_THAT(first_, ElementsAre(1.0f, 1.0f, 1.0f, 1.0f));
}

TEST_F(ExchangeTest, RateFactorsTravelWithTheNextGradientAndItsRepetitions) {
  ReachStepZero();
  EXPECT_EQ(
      See(exchange_->Push(1, std::vector<float>{1, 2}, 1, now_)).sends.at(0).header.flags,
      0);
  exchange_->SetRateFactor(0, 0.25f);
  Seen seen = See(exchange_->Push(0, gradient_, 7, now_));
  exchange_->SetRateFactor(0, 0.5f);  // for the next step
  for (int i = 0; i < 2; ++i, seen = Reconnect()) {
    const MessageHeader& header = seen.sends.at(0).header;
    EXPECT_EQ(header.block, 0u);
    EXPECT_EQ(header.flags, kFlagRate);
    EXPECT_EQ(std::bit_cast<float>(header.shard), 0.25f);
    EXPECT_EQ(See(exchange_->SendDone(0)).failures.size(), 0u);
  }
}

}  // namespace
}  // namespace syncline
