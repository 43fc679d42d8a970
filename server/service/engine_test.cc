#include "server/service/engine.h"

#include <memory>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/engine_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST_F(EngineTest, CarriesAStepFromPushesToPublishedWeights) {
  Commit(1, {0, 1});
  FakeWorker first(0, engine_->address());
  FakeWorker second(1, engine_->address());
  first.SayHello();
  second.SayHello();
  first.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  first.SendBlock(MessageKind::kPush, 1, 0, 1.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  second.SendBlock(MessageKind::kPush, 1, 0, 3.0f);
  EXPECT_EQ(second.Next(), "ack s0");
  EXPECT_EQ(second.Next(), "publish v1");
  const auto published = first.NextMessage();
  ASSERT_EQ(Describe(published), "publish v1");
  const auto view = ParseBlock(
      published->payload.view(),
      {BlockRange{.tensor = 0, .first_element = 0, .elements = kElements}, 1, 1},
      {&first.codec()});
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<float> weights(kTileElements);
  ASSERT_TRUE(first.codec().Decode(view->tiles[0].bytes, weights).ok());
  EXPECT_EQ(weights, std::vector<float>(kTileElements, 6.0f));
  EXPECT_EQ(engine_->step(), 1u);
  EXPECT_GT(engine_->bytes(), 5u * 4 * kElements);
  first.SendBlock(MessageKind::kPush, 1, 0, 1.0f);  // a repetition: counted before
  EXPECT_EQ(first.Next(), "ack s0");
  first.Send(first.Header(MessageKind::kPull, 1, 1), {});
  EXPECT_EQ(first.Next(), "noted v1") << "it was sent, and this connection loses nothing";
  first.SayHello();
  first.SendBlock(MessageKind::kPush, 1, 0, 1.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  EXPECT_EQ(first.Next(), "publish v1") << "the last connection may have lost it";
  EXPECT_THAT(Exposition(),
              HasSubstr("syncline_pushes_total{job_name=\"job\",result=\"counted\"} 2"));
  EXPECT_THAT(Exposition(),
              HasSubstr("syncline_pushes_total{job_name=\"job\",result=\"repeated\"} 2"));
  EXPECT_THAT(Exposition(), HasSubstr("syncline_step_seconds_count{job_name=\"job\"} 1"));
}

// Frozen tensors take no part in steps.
TEST_F(EngineTest, AStepIsWholeWithoutTheFrozenBlocks) {
  AddJob(kJob, 2);
  Commit(1, {0});
  FakeWorker worker(0, engine_->address());
  worker.SayHello();
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "ack s0");
  for (uint64_t step = 0; step < 3; ++step) {
    worker.SendBlock(MessageKind::kPush, 1, step, 1.0f);
    EXPECT_EQ(worker.Next(), absl::StrCat("ack s", step));
    EXPECT_EQ(worker.Next(), absl::StrCat("publish v", step + 1));
  }
  EXPECT_THAT(Exposition(), HasSubstr("syncline_step_seconds_count{job_name=\"job\"} 3"));
}

TEST_F(EngineTest, TellsAWorkerWhyItsMessageIsNotTaken) {
  Commit(2, {0});
  FakeWorker worker(0, engine_->address());
  worker.SayHello();
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "refuse stale epoch");
  worker.SendBlock(MessageKind::kSeed, 3, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "refuse future epoch");
  worker.SendBlock(MessageKind::kSeed, 2, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "ack s0");
  worker.Send(worker.Header(MessageKind::kPush, 2, 0),
              Buffer::Allocate(1 << 20));  // too long
  EXPECT_EQ(worker.Next(), "refuse malformed");
  EXPECT_THAT(
      Exposition(),
      HasSubstr("syncline_refused_total{job_name=\"job\",reason=\"stale_epoch\"} 1"));
}

// A push that arrives before its epoch is refused as such, even if the epoch is committed
// before the answer is sent.
TEST_F(EngineTest, JudgesAMessageByTheEpochOfItsArrival) {
  Commit(1, {0});
  FakeWorker worker(0, engine_->address());
  worker.SayHello();
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "ack s0");
  engine_->Apply(kJob, ShardPrepare{2});
  EXPECT_TRUE(std::holds_alternative<ShardPrepared>(outputs_.Take().value()));
  // The engine's thread waits: the commit is queued before the push is handled.
  worker.SendBlock(MessageKind::kPush, 2, 0, 1.0f);
  worker.Flush();
  engine_->Apply(kJob, ShardCommit{.epoch = 2, .members = {{0, 10, 0, 1000}}});
  may_go_on_.Notify();
  const std::string answer = worker.Next();
  EXPECT_TRUE(answer == "refuse future epoch" || answer == "ack s0") << answer;
  worker.SendBlock(MessageKind::kPush, 2, 0, 1.0f);
  EXPECT_EQ(worker.Next(), answer == "ack s0" ? "publish v1" : "ack s0");
}

TEST_F(EngineTest, AnswersOnlyWhoShowsTheSessionKey) {
  Commit(1, {0});
  FakeWorker worker(0, engine_->address());
  worker.SendHello(/*session_key_offset=*/1);
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);  // its acknowledgement cannot be sent
  worker.SayHello();
  worker.Send(worker.Header(MessageKind::kPull, 1, 0), {});
  EXPECT_EQ(worker.Next(), "publish v0");
}

TEST_F(EngineTest, AHelloThatIsSaidAgainForgetsNothing) {
  Commit(1, {0});
  FakeWorker worker(0, engine_->address());
  worker.SayHello();
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "ack s0");
  worker.Send(worker.Header(MessageKind::kPull, 1, 0), {});
  EXPECT_EQ(worker.Next(), "publish v0");
  worker.RepeatHello();
  worker.Send(worker.Header(MessageKind::kPull, 1, 0), {});
  EXPECT_EQ(worker.Next(), "noted v0");
}

TEST_F(EngineTest, DroppedMembersHearNothingMore) {
  Commit(1, {0, 1});
  FakeWorker first(0, engine_->address());
  FakeWorker second(1, engine_->address());
  first.SayHello();
  second.SayHello();
  second.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(second.Next(), "ack s0");
  Commit(2, {0});
  second.SendBlock(MessageKind::kPush, 2, 0, 1.0f);
  AwaitExposition("syncline_refused_total{job_name=\"job\",reason=\"not_a_member\"} 1");
  first.SendBlock(MessageKind::kPush, 2, 0, 1.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  EXPECT_EQ(first.Next(), "publish v1");
  const auto applied = outputs_.Take();
  ASSERT_TRUE(applied.has_value() && std::holds_alternative<ShardApplied>(*applied));
  EXPECT_EQ(std::get<ShardApplied>(*applied).contributors.size(), 1u);
  // The worker is a member again. Anything sent to it in between would arrive before
  // this.
  Commit(3, {0, 1});
  second.SayHello();
  second.Send(second.Header(MessageKind::kPull, 3, 1), {});
  EXPECT_EQ(second.Next(), "publish v1");
}

TEST_F(EngineTest, OutlivesWorkersThatDieInTheMiddle) {
  Commit(1, {0, 1});
  FakeWorker survivor(0, engine_->address());
  {
    FakeWorker victim(1, engine_->address());
    victim.SayHello();
    victim.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
    EXPECT_EQ(victim.Next(), "ack s0");
  }
  survivor.SayHello();
  survivor.SendBlock(MessageKind::kPush, 1, 0, 1.0f);
  EXPECT_EQ(survivor.Next(), "ack s0");
  Commit(2, {0});
  EXPECT_EQ(survivor.Next(), "publish v1");
}

TEST_F(EngineTest, AJobThatIsReleasedAnswersNothing) {
  Commit(1, {0});
  const std::shared_ptr<Shard> shard = engine_->Release(kJob);
  ASSERT_NE(shard, nullptr);
  EXPECT_EQ(shard->epoch(), 1u) << "it is whole, and the caller's";
  EXPECT_EQ(engine_->Release(kJob), nullptr);
  engine_->Apply(kJob, ShardPrepare{2});
  EXPECT_TRUE(engine_->ReleaseAll().empty());
  EXPECT_FALSE(outputs_.Take(absl::ZeroDuration()).has_value());
}

TEST_F(EngineTest, WhatCannotBeBuiltIsSaidAndLeavesOtherJobsAlone) {
  EngineJobOptions options = JobOptions(kJob + 1);
  options.shard.training.optimizer.name = "no such thing";
  EXPECT_EQ(engine_->Build(options).status().code(), absl::StatusCode::kInvalidArgument);
  Commit(1, {0});
  EXPECT_EQ(engine_->ReleaseAll().size(), 1u);
}

}  // namespace
}  // namespace syncline
