// Tells the members of each job which of them the others wait for (straggler_watch.h).
#include <optional>
#include <utility>

#include "server/coordinator/coordinator_impl.h"

namespace syncline {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(5);
// A worker whose own part of a step is less than this times that of the next slowest
// costs the others little.
constexpr double kFactor = 1.25;

}  // namespace

Coordinator::Impl::Slowest::Slowest() : watch(kFactor) {}

void Coordinator::Impl::NameSlowest() {
  if (now_ - named_slowest_at_ < kLookEvery) return;
  named_slowest_at_ = now_;
  std::erase_if(slowest_, [&](const auto& known) {
    const Job* job = FindJob(known.first);
    return job == nullptr || job->IsOver();
  });
  for (const auto& [name, job] : jobs_) {
    if (job->IsOver()) continue;
    Slowest& slowest = slowest_[job->id()];
    slowest.watch.Look(job->View(now_, {}), now_);
    const std::optional<Straggler>& suspect = slowest.watch.suspect();
    SlowestWorker now;
    if (suspect) now.rank = suspect->rank;
    if (std::exchange(slowest.told, now.rank) != now.rank) job->TellMembers(now);
  }
}

}  // namespace syncline
