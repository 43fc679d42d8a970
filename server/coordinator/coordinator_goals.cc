// Watches how jobs keep to their goals (goal_watch.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/coordinator_impl.h"

namespace syncline {

void Coordinator::Impl::WatchGoals() {
  std::erase_if(watched_, [&](const auto& watched) {
    return std::ranges::none_of(jobs_, [&](const auto& entry) {
      return entry.second->id() == watched.first && entry.second->goals() != "none";
    });
  });
  for (const auto& [name, job] : jobs_) {
    const std::string& goals = job->goals();
    if (goals == "none") continue;
    // A job that is over is still shown for a while. Its watch ends.
    if (job->IsOver() && watched_.contains(job->id())) {
      watched_.at(job->id()).watch.End();
      continue;
    }
    auto watched = watched_.find(job->id());
    if (watched != watched_.end() && watched->second.goals != goals) {
      watched_.erase(watched);
      watched = watched_.end();
    }
    if (watched == watched_.end()) {
      absl::StatusOr<GoalSpec> spec = ParseGoals(goals);
      if (!spec.ok()) continue;  // only in a record that was edited by hand
      watched =
          watched_.emplace(job->id(), Watched{goals, GoalWatch(*std::move(spec))}).first;
    }
    GoalWatch& watch = watched->second.watch;
    if (!watch.IsDue(now_)) continue;
    const JobView view = job->View(now_, {});
    for (GoalNews& news : watch.Add(view, now_)) {
      outbox_.Log(absl::StrCat("job '", name, "': ", news.what),
                  news.is_bad ? LogReason::Level::kWarning : LogReason::Level::kInfo);
      outbox_.Add(CoordinatorEvent{.job = view.job,
                                   .job_name = name,
                                   .step = view.step,
                                   .kind = EventKind::kGoal,
                                   .what = std::move(news.what),
                                   .took = news.took});
    }
  }
}

std::vector<GoalView> Coordinator::Impl::ViewGoals(uint32_t job,
                                                   absl::Duration now) const {
  const auto watched = watched_.find(job);
  if (watched == watched_.end()) return {};
  return watched->second.watch.View(now);
}

}  // namespace syncline
