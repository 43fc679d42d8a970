// The answer that gives a share to a server that stands by, in jobs that miss their goals.
#include <map>

#include "server/coordinator/job_moves_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AddServer : public JobMoves {
 protected:
  // One server serves both places, another has the backups of both and stands by.
  void Begin(const std::string& answers) {
    JobSpec job = WithBackups();
    job.settings.goals = "step_p95_ms<=150";
    job.settings.answers = answers;
    HandOver(job, /*spreads=*/false);
    ASSERT_EQ(Count<TakeOver>(5), 0u) << "nothing moves by itself";
    servers_answer_ = true;
  }
  // Both workers make five steps a second, and compute for half of the time.
  void Train(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      for (const ConnectionId connection : {10, 11}) {
        Heartbeat& beat = beats_[connection];
        beat.step += 5;
        beat.phases.steps += 5;
        beat.samples += 40;
        beat.phases[WorkerPhase::kCompute] += 0.5;
        beat.phases[WorkerPhase::kPublish] += 0.5;
        for (int k = 0; k < 5; ++k) beat.durations.Add(absl::Milliseconds(200));
      }
      Pass(absl::Seconds(1));
    }
  }
  size_t TakeOvers() const { return Count<TakeOver>(5) + Count<TakeOver>(6); }
};

TEST_F(AddServer, GivesAShareToTheOneThatStandsByOnceAGoalIsMissed) {
  Begin("add_server");
  Train(5);
  EXPECT_EQ(TakeOvers(), 0u) << "no window is over";
  Train(120);
  EXPECT_EQ(TakeOvers(), 1u);
  EXPECT_THAT(
      Said(EventKind::kAnswer),
      ElementsAre(HasSubstr("which stands by, gets a share from a server that has "
                            "two: no worker is a straggler; goal step_p95_ms<=150 "
                            "is missed: ")));
  EXPECT_EQ(Shown().answers->given.at("add_server"), 1u);
}

TEST_F(AddServer, IsDoneByNoOtherAnswer) {
  Begin("exclude_straggler,min_workers=1");
  Train(120);
  EXPECT_EQ(TakeOvers(), 0u);
  EXPECT_THAT(Said(EventKind::kAnswer), IsEmpty());
}

}  // namespace
}  // namespace syncline
