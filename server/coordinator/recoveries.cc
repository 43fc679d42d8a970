#include "server/coordinator/recoveries.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace syncline {

std::string_view CauseName(Recoveries::Cause cause) {
  switch (cause) {
    case Recoveries::Cause::kBackup:
      return "backup";
    case Recoveries::Cause::kJournal:
      return "journal";
    case Recoveries::Cause::kCoordinator:
      return "coordinator";
  }
  return "unknown";
}

void Recoveries::Begin(Cause cause, std::string_view what,
                       std::optional<absl::Duration> since) {
  if (std::ranges::find(open_, what, &Open::what) != open_.end()) return;
  open_.push_back({.cause = cause, .what = std::string(what), .since = since});
}

std::optional<std::string> Recoveries::Look(bool goes_on, absl::Duration now) {
  for (Open& open : open_) {
    if (!open.since) open.since = now;
  }
  if (open_.empty() || !goes_on) return std::nullopt;
  std::vector<std::string> names;
  std::set<std::string> causes;
  last_took_ = {};
  for (const Open& open : open_) {
    const absl::Duration took = now - *open.since;
    RecoverySums& sums = sums_[open.cause];
    ++sums.count;
    sums.took += took;
    last_took_ = std::max(last_took_, took);
    names.push_back(open.what);
    causes.emplace(CauseName(open.cause));
  }
  last_ = absl::StrJoin(names, " and ");
  last_causes_ = absl::StrJoin(causes, " and ");
  last_at_ = now;
  open_.clear();
  return absl::StrFormat("goes on %.1f s after the loss of %s",
                         absl::ToDoubleSeconds(last_took_), last_);
}

// A run that failed before it began keeps the steps of the run before it.
void Recoveries::Follow(const Recoveries& earlier, std::optional<uint64_t> steps) {
  rollbacks_ = earlier.rollbacks_;
  earlier_steps_ = steps ? std::max(*steps, earlier.earlier_steps_) : 0;
}

std::optional<std::string> Recoveries::BeginAt(uint64_t steps) {
  const uint64_t before = std::exchange(earlier_steps_, 0);
  if (before <= steps) return std::nullopt;
  ++rollbacks_;
  return absl::StrCat("goes back from step ", before,
                      ", which its last run had reached, to step ", steps, ": ",
                      before - steps, " steps are repeated");
}

RecoveryView Recoveries::View(absl::Duration now) const {
  RecoveryView view{.rollbacks = rollbacks_};
  for (const Cause cause : {Cause::kBackup, Cause::kJournal, Cause::kCoordinator}) {
    const auto known = sums_.find(cause);
    const RecoverySums sums = known == sums_.end() ? RecoverySums() : known->second;
    view.sums[std::string(CauseName(cause))] = sums;
    view.count += sums.count;
  }
  if (view.count == 0) return view;
  view.last = last_;
  view.last_causes = last_causes_;
  view.last_took = last_took_;
  view.last_age = now - last_at_;
  return view;
}

}  // namespace syncline
