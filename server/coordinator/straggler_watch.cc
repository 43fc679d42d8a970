#include "server/coordinator/straggler_watch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

namespace syncline {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(10);
constexpr uint64_t kStepsOfWindow = 3;
constexpr absl::Duration kLongestWindow = absl::Minutes(1);
// Of what the slowest takes longer the others wait for so much, if it is they who wait.
constexpr double kWaitsFor = 0.5;

double Waits(const WorkerPhases& step) {
  return step[WorkerPhase::kOthers] + step[WorkerPhase::kPublish];
}

double Own(const WorkerPhases& step) {
  return std::accumulate(step.seconds.begin(), step.seconds.end(), 0.0) - Waits(step);
}

}  // namespace

void StragglerWatch::Begin(Members members, absl::Duration now) {
  since_ = now;
  then_ = std::move(members);
}

void StragglerWatch::Look(const JobView& job, absl::Duration now) {
  if (job.phase !=
      "running") {  // for a moment, or for long: no step is as it is otherwise
    since_.reset();
    return;
  }
  Members members;
  for (const MemberView& member : job.members) {
    if (member.is_outside) continue;
    members[member.rank] = {member.incarnation, member.name, member.phases};
  }
  const bool is_same =
      std::ranges::equal(members, then_, [](const auto& one, const auto& other) {
        return one.first == other.first &&
               one.second.incarnation == other.second.incarnation &&
               one.second.phases.steps >= other.second.phases.steps;
      });
  if (!since_ || !is_same) return Begin(std::move(members), now);
  uint64_t fewest = members.empty() ? 0 : UINT64_MAX;
  for (const auto& [rank, member] : members) {
    fewest = std::min(fewest, member.phases.steps - then_.at(rank).phases.steps);
  }
  const absl::Duration length = now - *since_;
  if (length < kWindow || (fewest < kStepsOfWindow && length < kLongestWindow)) return;
  if (fewest > 0) {
    Judge(members, length);
  } else {
    suspect_.reset();
    waited_ = 0;
  }
  Begin(std::move(members), now);
}

void StragglerWatch::Judge(const Members& members, absl::Duration length) {
  struct Figures {
    uint32_t rank;
    double own;
    double waits;
    WorkerPhases step;
  };
  std::vector<Figures> all;
  waited_ = 0;
  for (const auto& [rank, member] : members) {
    WorkerPhases step = member.phases;
    const WorkerPhases& before = then_.at(rank).phases;
    const auto steps = static_cast<double>(step.steps - before.steps);
    for (size_t i = 0; i < step.seconds.size(); ++i) {
      step.seconds[i] = (step.seconds[i] - before.seconds[i]) / steps;
    }
    const Figures figures = {rank, Own(step), Waits(step), step};
    const double whole = figures.own + figures.waits;
    if (whole > 0) waited_ += figures.waits / whole / static_cast<double>(members.size());
    all.push_back(figures);
  }
  const std::optional<Straggler> before = std::exchange(suspect_, std::nullopt);
  if (all.size() < 2) return;
  std::ranges::sort(all, std::greater(), &Figures::own);
  const double longest_wait = std::ranges::max(all, {}, &Figures::waits).waits;
  const double excess = all[0].own - all[1].own;
  // Workers say what they like: what is no number is no straggler's.
  if (!(all[1].own > 0) || !std::isfinite(all[0].own)) return;
  if (!(all[0].own >= factor_ * all[1].own)) return;
  if (longest_wait < kWaitsFor * excess) return;
  const Member& member = members.at(all[0].rank);
  const WorkerPhases& step = all[0].step;
  suspect_ = {.rank = all[0].rank,
              .incarnation = member.incarnation,
              .name = member.name,
              .own_seconds = all[0].own,
              .next_seconds = all[1].own,
              .is_by_link = step[WorkerPhase::kPush] > step[WorkerPhase::kCompute],
              .lasted = length};
  if (before && before->rank == suspect_->rank &&
      before->incarnation == suspect_->incarnation) {
    suspect_->lasted += before->lasted;
  }
}

}  // namespace syncline
