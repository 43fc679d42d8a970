#include "server/service/trace_desk.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr uint64_t kTrace = 77;

// Has two servers on connections 1 and 2, and two workers on 11 and 12.
class TraceDeskTest : public testing::Test {
 protected:
  TraceDeskTest() {
    using Role = TraceTarget::Role;
    for (const uint32_t i : {0u, 1u}) {
      targets_.members.push_back(
          {.role = Role::kServer, .number = i, .connection = i + 1});
    }
    for (const uint32_t i : {0u, 1u}) {
      targets_.members.push_back(
          {.role = Role::kWorker, .number = i, .connection = i + 11});
    }
  }

  absl::Status Begin(uint64_t id = kTrace, uint32_t steps = 20) {
    v1::StartTraceRequest request;
    request.set_job("bert");
    request.set_steps(steps);
    request.set_limit_ms(60000);
    orders_.clear();
    return desk_.Begin(id, request, targets_, now_, orders_);
  }
  void Say(uint64_t connection, uint64_t first_step, bool last = false,
           const std::string& packed = "", uint64_t trace = kTrace) {
    v1::TracePart part;
    part.set_trace(trace);
    part.set_first_step(first_step);
    part.set_last(last);
    part.set_packed(packed);
    part.set_spans(static_cast<uint32_t>(packed.size()));
    part.set_track("loop");
    desk_.Take(connection, part, now_, orders_);
  }
  v1::FetchTraceReply Fetch(uint64_t seen = 0, bool stop = false) {
    v1::FetchTraceRequest request;
    request.set_job("bert");
    request.set_trace(kTrace);
    request.set_seen(seen);
    request.set_stop(stop);
    v1::FetchTraceReply reply;
    EXPECT_TRUE(desk_.Fetch(request, targets_, now_, reply, orders_).ok());
    return reply;
  }
  // Returns the connections that were ordered since the last call, with `until`.
  std::vector<std::pair<uint64_t, uint64_t>> TakeOrders() {
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    for (const auto& [connection, order] : orders_)
      taken.emplace_back(connection, order.until());
    orders_.clear();
    return taken;
  }
  void BeginRecording() {
    ASSERT_TRUE(Begin().ok());
    Say(1, 0);
    Say(2, 0);
    Say(11, 100);
    Say(12, 101);
    orders_.clear();
  }

  using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;
  TraceDesk desk_;
  TraceTargets targets_;
  TraceDesk::Orders orders_;
  absl::Duration now_ = absl::Seconds(50);
};

TEST_F(TraceDeskTest, ServersRecordBeforeWorkersDoAndAllUpToTheSameStep) {
  ASSERT_TRUE(Begin().ok());
  EXPECT_EQ(TakeOrders(), (Pairs{{1, 0}, {2, 0}}));
  Say(1, 0);
  EXPECT_TRUE(TakeOrders().empty());
  Say(2, 0);
  EXPECT_EQ(TakeOrders(), (Pairs{{11, 0}, {12, 0}}));
  Say(11, 100);
  EXPECT_EQ(Fetch().phase(), "workers");
  Say(12, 101);
  EXPECT_EQ(TakeOrders(), (Pairs{{1, 121}, {2, 121}, {11, 121}, {12, 121}}));
  const auto reply = Fetch();
  EXPECT_EQ(reply.phase(), "recording");
  EXPECT_EQ(reply.first_step(), 101u);
  EXPECT_EQ(reply.until(), 121u);
}

TEST_F(TraceDeskTest, WhoeverDoesNotAnswerIsNotWaitedForLong) {
  ASSERT_TRUE(Begin().ok());
  Say(1, 0);
  now_ += TraceDesk::kAnswerWithin;
  orders_.clear();
  EXPECT_EQ(Fetch().phase(), "workers");
  EXPECT_EQ(TakeOrders(), (Pairs{{11, 0}, {12, 0}}));
  Say(11, 7);
  now_ += TraceDesk::kAnswerWithin;
  const auto reply = Fetch();
  EXPECT_EQ(reply.phase(), "recording");
  EXPECT_EQ(reply.first_step(), 7u);
  EXPECT_FALSE(reply.members(1).answered());
  EXPECT_FALSE(reply.members(3).answered());
  Say(1, 0, true);
  Say(11, 0, true);
  EXPECT_EQ(Fetch().phase(), "done");
}

TEST_F(TraceDeskTest, IsDoneWhenEverybodyHasSentItsLastPartOrIsGone) {
  BeginRecording();
  for (const uint64_t connection : {1, 2, 11}) Say(connection, 0, true);
  EXPECT_EQ(Fetch().phase(), "recording");
  targets_.members.pop_back();  // worker 1 died
  const auto reply = Fetch();
  EXPECT_EQ(reply.phase(), "done");
  EXPECT_TRUE(reply.members(3).gone());
  EXPECT_FALSE(reply.members(3).done());
  EXPECT_FALSE(reply.members(2).gone());
}

TEST_F(TraceDeskTest, ServersOfAJobThatIsOverMaySendTheirLastParts) {
  BeginRecording();
  Say(11, 0, true);
  Say(12, 0, true);
  targets_.members.clear();
  EXPECT_EQ(Fetch().phase(), "recording");
  Say(1, 0, true, "late");
  now_ += TraceDesk::kLastPartsWithin;
  const auto reply = Fetch();
  EXPECT_EQ(reply.phase(), "done");
  EXPECT_TRUE(reply.members(0).done());
  EXPECT_TRUE(reply.members(1).gone());
  EXPECT_FALSE(reply.members(2).gone());
}

TEST_F(TraceDeskTest, PartsAreGivenOnceTheyAreThereAndForgottenOnceTheyWereSeen) {
  BeginRecording();
  Say(11, 0, false, "aaa");
  Say(1, 0, false, "bb");
  auto reply = Fetch();
  ASSERT_EQ(reply.parts_size(), 2);
  EXPECT_EQ(reply.parts(0).member(), 2u);
  EXPECT_EQ(reply.parts(0).packed(), "aaa");
  EXPECT_EQ(reply.parts(1).member(), 0u);
  EXPECT_EQ(Fetch(0).parts_size(), 2) << "an answer may be lost";
  reply = Fetch(1);
  ASSERT_EQ(reply.parts_size(), 1);
  EXPECT_EQ(reply.parts(0).packed(), "bb");
  EXPECT_EQ(Fetch(2).parts_size(), 0);
}

TEST_F(TraceDeskTest, LargeOnesComeInSeveralReplies) {
  BeginRecording();
  for (int i = 0; i < 9; ++i) Say(11, 0, false, std::string(size_t{1} << 20, 'x'));
  const auto reply = Fetch();
  EXPECT_TRUE(reply.more());
  EXPECT_LT(reply.ByteSizeLong(), size_t{8} << 20);
  const auto rest = Fetch(static_cast<uint64_t>(reply.parts_size()));
  EXPECT_FALSE(rest.more());
  EXPECT_EQ(reply.parts_size() + rest.parts_size(), 9);
}

TEST_F(TraceDeskTest, KeepsNoMoreThanItsLimitAndCountsTheRest) {
  BeginRecording();
  // Four more bytes are for the name of the track.
  const std::string part((size_t{1} << 20) - 4, 'x');
  for (size_t i = 0; i < TraceDesk::kMaxBytes / part.size(); ++i) Say(11, 0, false, part);
  EXPECT_EQ(Fetch().members(2).dropped(), 0u);
  Say(11, 0, false, part);
  Say(12, 0, false, "abc");
  const auto reply = Fetch();
  EXPECT_EQ(reply.members(2).dropped(), part.size());
  EXPECT_EQ(reply.members(3).dropped(), 3u);
}

TEST_F(TraceDeskTest, StrangersAndOtherTracesSayNothing) {
  BeginRecording();
  Say(99, 0, true, "stranger");
  Say(11, 0, true, "older", kTrace + 1);
  EXPECT_EQ(Fetch().parts_size(), 0);
  EXPECT_FALSE(Fetch().members(2).done());
}

TEST_F(TraceDeskTest, AWorkerThatWasNotOrderedYetIsNotHeard) {
  ASSERT_TRUE(Begin().ok());
  Say(11, 100);
  EXPECT_FALSE(Fetch().members(2).answered());
}

TEST_F(TraceDeskTest, OneTraceAtATimeUnlessItsCallerIsGone) {
  BeginRecording();
  EXPECT_EQ(Begin(kTrace + 1).code(), absl::StatusCode::kFailedPrecondition);
  now_ += TraceDesk::kForgottenAfter;
  EXPECT_TRUE(Begin(kTrace + 1).ok());
  v1::FetchTraceRequest request;
  request.set_job("bert");
  request.set_trace(kTrace);
  v1::FetchTraceReply reply;
  EXPECT_EQ(desk_.Fetch(request, targets_, now_, reply, orders_).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(TraceDeskTest, StoppingOrdersEverybodyToEnd) {
  BeginRecording();
  Fetch(0, true);
  EXPECT_EQ(TakeOrders(), (Pairs{{1, 1}, {2, 1}, {11, 1}, {12, 1}}));
}

TEST_F(TraceDeskTest, WhatMakesNoSenseIsRefused) {
  EXPECT_EQ(Begin(kTrace, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Begin(kTrace, TraceDesk::kMaxSteps + 1).code(),
            absl::StatusCode::kInvalidArgument);
  targets_.members.resize(2);
  EXPECT_EQ(Begin().code(), absl::StatusCode::kFailedPrecondition) << "no worker";
}

}  // namespace
}  // namespace syncline
