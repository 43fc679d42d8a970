// Who hears which worker of a job is the slowest.
#include "server/coordinator/coordinator_restart_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CoordinatorSlowest : public CoordinatorRestart {
 protected:
  void SetUp() override { BeginWith(TwoTensors(2)); }

  // The members on these connections make five steps a second for this many seconds, and
  // compute for this many milliseconds of each step.
  void Train(int seconds, const std::map<ConnectionId, int>& computes_ms) {
    std::vector<ConnectionId> alive = servers_;
    for (const auto& [connection, ms] : computes_ms) alive.push_back(connection);
    for (int i = 0; i < seconds; ++i) {
      for (const auto& [connection, ms] : computes_ms) {
        Heartbeat& beat = beats_[connection];
        beat.step += 5;
        beat.phases.steps += 5;
        beat.phases[WorkerPhase::kCompute] += 5e-3 * ms;
        beat.phases[WorkerPhase::kOthers] += 5e-3 * (200 - ms);
        for (int k = 0; k < 5; ++k) beat.durations.Add(absl::Milliseconds(200));
      }
      PassTimeBeating(absl::Seconds(1), alive);
    }
  }

  // Returns what the connection was told of it, in order; -1: nobody.
  std::vector<int> Told(ConnectionId connection) {
    std::vector<int> told;
    for (const CoordinatorBody& body : told_[connection]) {
      const auto* slowest = std::get_if<SlowestWorker>(&body);
      if (slowest == nullptr) continue;
      told.push_back(slowest->rank ? static_cast<int>(*slowest->rank) : -1);
    }
    return told;
  }

  std::vector<ConnectionId> servers_ = {1, 2};
};

TEST_F(CoordinatorSlowest, IsToldToAllMembersWhenThatChangesAndNoMoreOften) {
  Train(15, {{10, 100}, {11, 190}});
  EXPECT_THAT(Told(10), IsEmpty()) << "the first window is not judged";
  Train(100, {{10, 100}, {11, 190}});
  EXPECT_THAT(Told(10), ElementsAre(1));
  EXPECT_THAT(Told(11), ElementsAre(1));
  EXPECT_THAT(Told(1), IsEmpty()) << "a server";
  Train(100, {{10, 190}, {11, 100}});
  EXPECT_THAT(Told(10).back(), 0);
  Train(100, {{10, 180}, {11, 185}});
  EXPECT_THAT(Told(10).back(), -1) << "they are about equally fast";
  EXPECT_EQ(Told(10), Told(11));
  EXPECT_LE(Told(10).size(), 4u);
}

TEST_F(CoordinatorSlowest, IsNobodyOnceItHasLeft) {
  Train(60, {{10, 100}, {11, 190}});
  ASSERT_THAT(Told(10), ElementsAre(1));
  Say(11, Leave{});
  Train(10, {{10, 100}});
  EXPECT_THAT(Told(10), ElementsAre(1, -1));
  EXPECT_THAT(Told(11), ElementsAre(1));
}

TEST_F(CoordinatorSlowest, IsFoundAgainByTheNextCoordinator) {
  Train(60, {{10, 100}, {11, 190}});
  epoch_ = Last<CommitEpoch>(1)->epoch;
  Restart();
  ServersReturn();
  WorkerReturns(0);
  WorkerReturns(1);
  EXPECT_THAT(Told(100), IsEmpty());
  servers_ = {10, 20};
  beats_[100] = beats_[10];
  beats_[101] = beats_[11];
  Train(60, {{100, 100}, {101, 190}});
  EXPECT_THAT(Told(100), ElementsAre(1));
}

}  // namespace
}  // namespace syncline
