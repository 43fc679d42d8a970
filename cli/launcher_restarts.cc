// Launcher: decides which workers are started again, and when.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/launcher.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr absl::Duration kLookForNewRunEvery = absl::Seconds(1);

}  // namespace

bool Launcher::MayStartAgain(int rank) {
  if (restarts_[rank] >= options_.max_restarts) return false;
  FruitlessRestarts& fruitless = fruitless_[rank];
  // Without servers there are no steps to count, so progress is unknown.
  if (plan_.starts_coordinator && plan_.servers == 0) return true;
  // With fewer restarts allowed, they are used up before progress matters.
  if (options_.max_restarts > FruitlessRestarts::kMost) {
    fruitless.NoteDeath(AskForJob().steps);
  }
  return !fruitless.AreUsedUp();
}

// If some workers run on other hosts, this launcher does not know whether they have
// finished.
bool Launcher::MayRejoin(int rank) const {
  const auto restarts = restarts_.find(rank);
  return restarts != restarts_.end() && restarts->second > 0 &&
         static_cast<int>(plan_.workers.size()) == plan_.world_size &&
         latecomers_.Rejoins(rank);
}

void Launcher::OnLatecomer(int rank) {
  Say(absl::StrCat("worker ", rank, " came back when the others had left the job; it is ",
                   "started again only if they start it over"));
  latecomers_.Wait(rank);
  look_for_new_run_at_ = absl::Now();
}

absl::Status Launcher::LookForNewRun() {
  if (latecomers_.waiting() == 0) look_for_new_run_at_ = absl::InfiniteFuture();
  if (absl::Now() < look_for_new_run_at_) return absl::OkStatus();
  look_for_new_run_at_ = absl::Now() + kLookForNewRunEvery;
  // The run that the latecomers belonged to is over, so it does not lack workers.
  if (!AskForJob().lacks_workers) return absl::OkStatus();
  const std::vector<int> late = latecomers_.BeginAnew();
  for (const WorkerPlan& worker : plan_.workers) {
    if (std::ranges::count(late, worker.rank) == 0) continue;
    Say(absl::StrCat("worker ", worker.rank,
                     " is started again: a new run of the job waits for it"));
    SYNCLINE_RETURN_IF_ERROR(StartWorker(worker));
  }
  return absl::OkStatus();
}

}  // namespace syncline
