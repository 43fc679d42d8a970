// What a launcher that was told to end means for its job: the ranks of its host do not come
// back, so nobody waits for them, and a job that has no others is over.
//
// A report takes away time to come back, and nothing else. Whoever still has a stream is a
// member until it ends: a report that is wrong, or late, drops nobody who lives. Ranks of
// other hosts that are gone without a goodbye may come back as ever; the job waits for them.
// A report of ranks that live on is forgotten after a while: they are members like others.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "comm/base/limits.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "server/coordinator/job.h"

namespace syncline {
namespace {

constexpr size_t kRanksShown = 8;
// Launchers kill after 1 s what does not end (cli/launcher.cc), and tell before that; so
// much more is for the network, and for a host that is slow.
constexpr absl::Duration kLongestStop = absl::Seconds(5);
constexpr size_t kMostWhyBytes = 100;
constexpr size_t kMostHostBytes = 255;

std::string Listed(const std::vector<uint32_t>& ranks) {
  const size_t shown = std::min(ranks.size(), kRanksShown);
  const std::string list = absl::StrJoin(
      ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", list,
      shown == ranks.size() ? "" : absl::StrCat(" and ", ranks.size() - shown, " more"));
}

}  // namespace

// A program with several sessions is in a job and in those beside it, "bert-2" and so on
// (worker/python/src/syncline/_names.py), while its launcher knows of the first alone.
bool Job::IsOfProgram(const std::string& job, const std::string& run_id) const {
  if (run_id.empty() || run_id != run_id_) return false;
  absl::string_view rest = spec_.name;
  if (!absl::ConsumePrefix(&rest, job)) return false;
  uint32_t number = 0;
  return rest.empty() ||
         (absl::ConsumePrefix(&rest, "-") && absl::SimpleAtoi(rest, &number) &&
          number >= 2 && absl::StrCat(number) == rest);
}

// Of a job beside the launcher's own the ranks that live on its host: names and run ids are
// chosen by people, and that job may be another launcher's.
std::vector<uint32_t> Job::StoppedHere(const LauncherStop& stop) const {
  if (spec_.name == stop.job) return stop.ranks;
  std::vector<uint32_t> here;
  for (const uint32_t rank : stop.ranks) {
    const JobWorker* worker = workers_.Find(rank);
    const bool is_here =
        worker != nullptr && absl::StartsWith(worker->name, stop.host + ":");
    if (is_here) here.push_back(rank);
  }
  return here;
}

absl::Status Job::OnStop(const LauncherStop& stop, absl::Duration now,
                         CoordinatorOutputs& outputs) {
  if (stop.ranks.empty() || stop.ranks.size() > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a report of ", stop.ranks.size(), " ranks, allowed are 1 to ", kMaxWorkers));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckReport(stop.run_id, stop.ranks));
  // Runs without one cannot be told apart: it may be another launcher's.
  if (stop.run_id.empty()) {
    return absl::FailedPreconditionError(
        "a launcher without --run-id does not say whose ranks have ended");
  }
  const std::vector<uint32_t> ranks = StoppedHere(stop);
  if (ranks.empty()) return absl::OkStatus();
  stops_.NoteLauncher(absl::StrCat(Printable(stop.why, kMostWhyBytes),
                                   " to the launcher at ",
                                   Printable(stop.host, kMostHostBytes), ", run ",
                                   Printable(run_id_, kMaxJobNameBytes)));
  const std::string what = absl::StrCat(Listed(ranks), ranks.size() == 1 ? " is" : " are",
                                        " being stopped: ", stops_.last_by());
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what)});
  Say({.kind = EventKind::kExit, .what = what}, outputs);
  const absl::Duration until =
      now + std::max(options_.timeouts.failure_timeout, kLongestStop);
  for (const uint32_t rank : ranks) {
    lost_.erase(rank);
    const JobWorker* worker = workers_.Find(rank);
    if (worker != nullptr) stops_.Add(rank, worker->incarnation, until);
  }
  LetStoppedGo(now, outputs);
  return absl::OkStatus();
}

void Job::LetStoppedGo(absl::Duration now, CoordinatorOutputs& outputs) {
  std::vector<uint32_t> gone;
  std::map<std::string, std::vector<uint32_t>> living;  // by the word of their launcher
  for (const uint32_t rank : stops_.ranks()) {
    const Stops::Stop stop = stops_.at(rank);
    const JobWorker* worker = workers_.Find(rank, stop.incarnation);
    // It left in order, or a successor has its place.
    if (worker == nullptr) {
      stops_.Forget(rank);
      continue;
    }
    if (worker->is_awaited) continue;
    if (worker->connected && now < stop.until) continue;
    stops_.Forget(rank);
    if (worker->connected) {
      living[stop.by].push_back(rank);
    } else {
      gone.push_back(rank);
    }
  }
  for (const auto& [by, ranks] : living) SayTheyLive(ranks, by, outputs);
  for (const uint32_t rank : gone) {
    const std::string what =
        absl::StrCat(workers_.Named(rank), " was stopped with its launcher");
    outputs.emplace_back(
        CloseMember{workers_.at(rank).connection, absl::AbortedError(what)});
    Forget(rank, EpochCause::kLeave, what);
    Say({.kind = EventKind::kLeave, .what = what}, outputs);
  }
  EndWhenStopped(outputs);
  if (IsOver() || gone.empty()) return;
  MaybeReleaseBarrier(outputs);
  MaybeChangeEpoch(outputs);
}

void Job::SayTheyLive(const std::vector<uint32_t>& ranks, const std::string& by,
                      CoordinatorOutputs& outputs) const {
  const std::string what =
      absl::StrCat(Listed(ranks), ranks.size() == 1 ? " lives" : " live",
                   " on, though to be stopped: ", by);
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what),
                              LogReason::Level::kWarning});
  Say({.kind = EventKind::kExit, .what = what}, outputs);
}

void Job::EndWhenStopped(CoordinatorOutputs& outputs) {
  const bool anyone_may_come = !workers_.empty() || !lost_.empty();
  if (IsOver() || saves_last_ || stops_.last_by().empty() || anyone_may_come) return;
  was_stopped_ = true;
  End(absl::StrCat("stopped by ", stops_.last_by()), outputs);
}

}  // namespace syncline
