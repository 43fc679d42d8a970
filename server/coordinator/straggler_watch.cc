#include "server/coordinator/straggler_watch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace syncline {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(10);
constexpr uint64_t kStepsOfWindow = 3;
// A window ends after kLongestStandstill if some member makes no step in it, and after
// kLongestWindow if some member makes few.
constexpr absl::Duration kLongestStandstill = absl::Minutes(1);
constexpr absl::Duration kLongestWindow = absl::Minutes(3);
// Limit on the time that one window adds to a suspicion, since steps are evidence and
// time is not.
constexpr absl::Duration kMostOfWindow = absl::Seconds(20);
// A step may have begun before the window, and a report may be late.
constexpr double kMostOfTime = 2;
// Share of the slowest member's extra time for which the others must wait longer than it
// does.
constexpr double kWaitsFor = 0.5;
// Servers that take pushes one after the other make some member the last. Of two members,
// the last seems twice as slow; of three, 1.5 times.
constexpr double kLeastLinkFactor = 2;
constexpr size_t kLeastLinkMembers = 3;

double Waits(const WorkerPhases& step) {
  return step[WorkerPhase::kOthers] + step[WorkerPhase::kPublish];
}

double Sum(const WorkerPhases& step) {
  return std::accumulate(step.seconds.begin(), step.seconds.end(), 0.0);
}

bool IsByLink(const WorkerPhases& slowest, const WorkerPhases& next, double excess) {
  return slowest[WorkerPhase::kPush] - next[WorkerPhase::kPush] > excess / 2;
}

}  // namespace

double StragglerWatch::Figures::UsualOwn() const {
  const auto all = static_cast<double>(steps);
  return (own * all - longest) / (all - 1);
}

void StragglerWatch::Begin(Members members, absl::Duration now) {
  since_ = now;
  then_ = std::move(members);
}

void StragglerWatch::Clear() {
  suspect_.reset();
  waited_ = 0;
}

void StragglerWatch::Look(const JobView& job, absl::Duration now) {
  // For a moment, or for long: no step is as it is otherwise.
  if (job.phase != JobPhase::kRunning) {
    since_.reset();
    return Clear();
  }
  Members members;
  for (const MemberView& member : job.members) {
    if (member.is_outside) continue;
    members[member.rank] = {member.incarnation, member.name, member.phases,
                            member.durations};
  }
  const bool is_same =
      std::ranges::equal(members, then_, [](const auto& one, const auto& other) {
        return one.first == other.first &&
               one.second.incarnation == other.second.incarnation &&
               one.second.phases.steps >= other.second.phases.steps;
      });
  if (!since_ || !is_same) {
    Clear();
    is_first_ = true;
    return Begin(std::move(members), now);
  }
  uint64_t fewest = members.empty() ? 0 : UINT64_MAX;
  for (const auto& [rank, member] : members) {
    fewest = std::min(fewest, member.phases.steps - then_.at(rank).phases.steps);
  }
  const absl::Duration length = now - *since_;
  const bool is_late = length >= (fewest == 0 ? kLongestStandstill : kLongestWindow);
  const bool is_whole = length >= kWindow && fewest >= kStepsOfWindow;
  if (!is_whole && !is_late) return;
  if (!is_whole) {
    Clear();
  } else if (!std::exchange(is_first_, false)) {
    Judge(members, length);
  }
  Begin(std::move(members), now);
}

std::vector<StragglerWatch::Figures> StragglerWatch::FiguresOf(
    const Members& members, absl::Duration length) const {
  std::vector<Figures> all;
  for (const auto& [rank, member] : members) {
    const Member& before = then_.at(rank);
    Figures figures = {.rank = rank,
                       .steps = member.phases.steps - before.phases.steps,
                       .step = member.phases};
    const auto steps = static_cast<double>(figures.steps);
    for (size_t i = 0; i < figures.step.seconds.size(); ++i) {
      double& seconds = figures.step.seconds[i];
      seconds = (seconds - before.phases.seconds[i]) / steps;
      // Workers may report anything. The test refuses NaN, too.
      if (!(seconds >= 0)) return {};
    }
    const double most = kMostOfTime * absl::ToDoubleSeconds(length) / steps;
    figures.waits = Waits(figures.step);
    figures.own = Sum(figures.step) - figures.waits;
    if (!(figures.whole() > 0) || !(figures.whole() <= most)) return {};
    const auto longest = member.durations.Since(before.durations).Quantile(1);
    if (!longest) return {};
    figures.longest = absl::ToDoubleSeconds(*longest);
    all.push_back(figures);
  }
  return all;
}

bool StragglerWatch::IsStraggler(const Figures& slowest, const Figures& next,
                                 double waits, size_t members) const {
  const double excess = slowest.own - next.own;
  if (!(next.own > 0) || !(excess > 0)) return false;
  // All members wait for servers. What the others wait longer is due to the slowest
  // member.
  if (!(waits - slowest.waits >= kWaitsFor * excess)) return false;
  const bool is_by_link = IsByLink(slowest.step, next.step, excess);
  if (is_by_link && members < kLeastLinkMembers) return false;
  const double least = (is_by_link ? std::max(factor_, kLeastLinkFactor) : factor_);
  return slowest.own >= least * next.own && slowest.UsualOwn() >= least * next.own;
}

void StragglerWatch::Judge(const Members& members, absl::Duration length) {
  std::vector<Figures> all = FiguresOf(members, length);
  const std::optional<Straggler> before = std::exchange(suspect_, std::nullopt);
  waited_ = 0;
  for (const Figures& figures : all) {
    waited_ += figures.waits / figures.whole() / static_cast<double>(all.size());
  }
  if (all.size() < 2) return;
  std::ranges::sort(all, std::greater(), &Figures::own);
  const double waits = std::ranges::max(all, {}, &Figures::waits).waits;
  if (!IsStraggler(all[0], all[1], waits, all.size())) return;
  const Member& member = members.at(all[0].rank);
  suspect_ = {.rank = all[0].rank,
              .incarnation = member.incarnation,
              .name = member.name,
              .own_seconds = all[0].own,
              .next_seconds = all[1].own,
              .whole_seconds = all[0].whole(),
              .is_by_link = IsByLink(all[0].step, all[1].step, all[0].own - all[1].own),
              .windows = 1,
              .lasted = std::min(length, kMostOfWindow)};
  if (before && before->rank == suspect_->rank &&
      before->incarnation == suspect_->incarnation) {
    suspect_->lasted += before->lasted;
    suspect_->windows += before->windows;
  }
}

}  // namespace syncline
