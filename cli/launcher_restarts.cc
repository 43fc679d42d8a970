// Which workers the launcher starts again, and as what.
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/launcher.h"

namespace syncline {

bool Launcher::MayStartAgain(int rank) {
  if (restarts_[rank] >= options_.max_restarts) return false;
  FruitlessRestarts& fruitless = fruitless_[rank];
  // Without servers nobody knows how far the program is.
  if (plan_.starts_coordinator && plan_.servers == 0) return true;
  // Otherwise the restarts are used up before it matters how far the job is.
  if (options_.max_restarts > FruitlessRestarts::kMost) {
    fruitless.NoteDeath(AskForJob().steps);
  }
  return !fruitless.AreUsedUp();
}

// Where the others are elsewhere nobody here knows whether they have finished.
bool Launcher::MayRejoin(int rank) const {
  const auto restarts = restarts_.find(rank);
  return restarts != restarts_.end() && restarts->second > 0 &&
         static_cast<int>(plan_.workers.size()) == plan_.world_size &&
         latecomers_.Rejoins(rank);
}

void Launcher::OnLatecomer(int rank) {
  std::vector<int> working;
  for (const WorkerPlan& worker : plan_.workers) {
    if (IsWorking(worker)) working.push_back(worker.rank);
  }
  Say(absl::StrCat("worker ", rank, " came back when the others had left the job; it is ",
                   "started again only if one of them is"));
  if (latecomers_.BeginsAnew(rank, working)) StartAnew(rank);
}

void Launcher::StartAnew(int rank) {
  restart_at_[rank] = absl::Now();
  latecomers_.NoteStart(rank);
}

}  // namespace syncline
