#include "server/coordinator/workers.h"

#include <gmock/gmock.h>

#include <variant>

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr absl::Duration kInterval = absl::Seconds(1);
constexpr absl::Duration kNow = absl::Seconds(100);

class WorkersTest : public ::testing::Test {
 protected:
  // A member; its connection is 10 + rank, its incarnation 20 + rank.
  JobWorker& Add(uint32_t rank, const std::string& name) {
    workers_.Add(rank, {.connection = 10 + rank,
                        .incarnation = 20 + rank,
                        .name = name,
                        .welcomed = true,
                        .heard_at = kNow});
    return workers_.at(rank);
  }
  std::vector<std::pair<ConnectionId, uint64_t>> Barriers(
      const std::vector<ToMember>& released) {
    std::vector<std::pair<ConnectionId, uint64_t>> all;
    for (const ToMember& one : released) {
      all.emplace_back(one.connection, std::get<BarrierReleased>(one.body).barrier);
    }
    return all;
  }

  Workers workers_{kInterval};
};

TEST_F(WorkersTest, AreFoundByTheirLives) {
  Add(3, "gpu7:1");
  EXPECT_EQ(workers_.Find(3), &workers_.at(3));
  EXPECT_EQ(workers_.Find(3, 23), &workers_.at(3));
  EXPECT_EQ(workers_.Find(3, 22), nullptr);
  EXPECT_EQ(workers_.Find(2), nullptr);
  EXPECT_EQ(workers_.Named(3), "worker 3 (gpu7:1)");
  EXPECT_EQ(workers_.Named(2), "worker 2");
}

// ---- Who counts ----

TEST_F(WorkersTest, ThoseOutsideAreNoMembers) {
  Add(0, "a:1");
  Add(1, "b:1").outside = true;
  EXPECT_TRUE(workers_.AreMembers({{.rank = 0, .incarnation = 20}}));
  EXPECT_FALSE(workers_.AreMembers({{.rank = 0, .incarnation = 19}}));
  EXPECT_FALSE(workers_.AreMembers({}));
  workers_.at(1).outside = false;
  EXPECT_FALSE(workers_.AreMembers({{.rank = 0, .incarnation = 20}}));
  EXPECT_TRUE(workers_.HasInsiders());
  workers_.ForgetAll();
  EXPECT_FALSE(workers_.HasInsiders());
}

TEST_F(WorkersTest, OneThatMissesTwoHeartbeatsMayBeDead) {
  JobWorker& worker = Add(0, "a:1");
  EXPECT_FALSE(workers_.MayBeDead(worker, kNow + 2 * kInterval));
  EXPECT_TRUE(workers_.MayBeDead(worker, kNow + 2 * kInterval + absl::Milliseconds(1)));
  worker.connected = false;
  EXPECT_TRUE(workers_.MayBeDead(worker, kNow));
}

TEST_F(WorkersTest, ShowWhoIsSilent) {
  Add(0, "a:1");
  Add(1, "b:1").heard_at = kNow - 3 * kInterval;
  Add(2, "c:1").is_awaited = true;
  const std::vector<MemberView> shown = workers_.View(kNow, kNow - absl::Seconds(7));
  ASSERT_EQ(shown.size(), 3u);
  EXPECT_FALSE(shown[0].is_silent);
  EXPECT_EQ(shown[0].heartbeat_age, absl::ZeroDuration());
  EXPECT_TRUE(shown[1].is_silent);
  EXPECT_EQ(shown[1].heartbeat_age, 3 * kInterval);
  EXPECT_TRUE(shown[2].is_silent) << "it has not come back";
  EXPECT_EQ(shown[2].heartbeat_age, absl::Seconds(7)) << "not of an earlier coordinator";
}

TEST_F(WorkersTest, TheOnlyMemberCannotBeLacked) {
  Add(0, "a:1");
  Add(1, "b:1").outside = true;
  const absl::Status only = workers_.CheckMayLack(0, "job", {});
  EXPECT_TRUE(absl::IsFailedPrecondition(only));
  EXPECT_EQ(only.message(), "worker 0 (a:1) is the only member of job 'job'");
}

TEST_F(WorkersTest, TheLastWorkerOfAHostThatServesCannotBeLacked) {
  Add(0, "a:1");
  Add(1, "a:2");
  Add(2, "b:1");
  EXPECT_EQ(workers_.CheckMayLack(2, "job", {"a"}), absl::OkStatus());
  const absl::Status last = workers_.CheckMayLack(2, "job", {"a", "b"});
  EXPECT_TRUE(absl::IsFailedPrecondition(last));
  EXPECT_THAT(std::string(last.message()), HasSubstr("last worker on a host"));
  EXPECT_EQ(workers_.CheckMayLack(0, "job", {"a"}), absl::OkStatus())
      << "its launcher has another one";
  workers_.at(1).outside = true;
  EXPECT_FALSE(workers_.CheckMayLack(0, "job", {"a"}).ok())
      << "one that waits outside keeps no launcher from ending";
}

TEST_F(WorkersTest, AHostIsTheWholeNameBeforeTheProcess) {
  Add(0, "gpu1:1");
  Add(1, "gpu10:1");
  EXPECT_EQ(workers_.CheckMayLack(0, "job", {"gpu10"}), absl::OkStatus());
  EXPECT_FALSE(workers_.CheckMayLack(1, "job", {"gpu10"}).ok());
}

TEST_F(WorkersTest, OneWithoutANameIsOnNoHost) {
  Add(0, "");
  Add(1, "b:1");
  EXPECT_EQ(workers_.CheckMayLack(0, "job", {""}), absl::OkStatus());
}

// ---- How far they are ----

TEST_F(WorkersTest, TheLowestStepIsOfMembersThatWereHeard) {
  EXPECT_EQ(workers_.LowestStep(), 0u);
  Add(0, "a:1").beat.step = 8;
  Add(1, "b:1").first_step = 6;  // it has just come
  Add(2, "c:1").welcomed = false;
  Add(3, "d:1").is_awaited = true;
  EXPECT_EQ(workers_.LowestStep(), 6u);
  EXPECT_EQ(workers_.HighestStep(), 8u);
  EXPECT_EQ(workers_.ReachedStep(), 8u);
}

TEST_F(WorkersTest, OneThatWaitsForItsFirstStepHasReachedNone) {
  JobWorker& worker = Add(0, "a:1");
  worker.beat.step = worker.first_step = 6;
  EXPECT_EQ(workers_.ReachedStep(), 0u);
  worker.beat.step = 7;
  EXPECT_EQ(workers_.ReachedStep(), 7u);
}

TEST_F(WorkersTest, OfThoseThatAreGoneTheLastStepStays) {
  Add(0, "a:1").beat.step = 5;
  Add(1, "b:1").beat.step = 9;
  workers_.Forget(1);
  EXPECT_EQ(workers_.LowestStep(), 5u);
  workers_.ForgetAll();
  EXPECT_EQ(workers_.LowestStep(), 9u);
  workers_.NoteStep(7);
  EXPECT_EQ(workers_.LowestStep(), 9u);
}

TEST_F(WorkersTest, WhatWasPushedIsCountedOverAllLives) {
  Heartbeat beat = {.step = 1};
  beat.compression.pushed_values = 100;
  beat.compression.pushed_value_bytes = 40;
  Add(0, "a:1");
  workers_.Hear(0, beat, kNow + kInterval);
  EXPECT_EQ(workers_.at(0).heard_at, kNow + kInterval);
  Add(0, "a:2");
  workers_.Hear(0, beat, kNow);
  beat.compression.pushed_values = 150;
  beat.compression.pushed_value_bytes = 30;  // which cannot be
  workers_.Hear(0, beat, kNow);
  EXPECT_EQ(workers_.pushed().pushed_values, 200u);
  EXPECT_EQ(workers_.pushed().pushed_value_bytes, 80u);
}

// ---- Barriers ----

TEST_F(WorkersTest, ABarrierEndsWhenAllMembersAreInOne) {
  Add(0, "a:1");
  Add(1, "b:1");
  Add(2, "c:1").welcomed = false;
  EXPECT_TRUE(workers_.EnterBarrier(0, 4));
  EXPECT_THAT(workers_.EndBarrier(), IsEmpty());
  EXPECT_TRUE(workers_.EnterBarrier(1, 0));
  EXPECT_THAT(Barriers(workers_.EndBarrier()), ElementsAre(Pair(10, 4), Pair(11, 0)))
      << "each from its own";
  EXPECT_EQ(workers_.barriers(), 1u);
  EXPECT_FALSE(workers_.EnterBarrier(0, 4)) << "which is over";
  EXPECT_THAT(workers_.EndBarrier(), IsEmpty());
}

TEST_F(WorkersTest, WhereNobodyIsAMemberNoBarrierEnds) {
  Add(0, "a:1").welcomed = false;
  workers_.EnterBarrier(0, 0);
  EXPECT_THAT(workers_.EndBarrier(), IsEmpty());
  EXPECT_EQ(workers_.barriers(), 0u);
}

TEST_F(WorkersTest, WhoMissedTheEndOfABarrierIsReleasedByWhatAnotherKnows) {
  Add(0, "a:1").barriers = 3;
  Add(1, "b:1").barriers = 4;
  workers_.EnterBarrier(0, 7);
  workers_.NoteBarriers(4);
  workers_.NoteBarriers(3);
  EXPECT_EQ(workers_.barriers(), 4u);
  EXPECT_THAT(Barriers(workers_.ReleaseThoseLeftBehind()), ElementsAre(Pair(10, 7)));
  EXPECT_THAT(workers_.ReleaseThoseLeftBehind(), IsEmpty());
}

}  // namespace
}  // namespace syncline
