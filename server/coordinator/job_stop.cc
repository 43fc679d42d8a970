// What it means for a job that a launcher was told to end. The ranks of the launcher's
// host will not return, so the job does not wait for them. A job without other ranks is
// over.
//
// A report only takes away the time to return. A worker that still has a stream stays a
// member until the stream ends, so a report that is wrong or late drops no worker that
// lives. The job still waits for lost ranks of other hosts. A report about ranks that
// live on is forgotten after a while, and they are members like the others.
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
// Launchers report first, and kill workers that have not ended after 1 s
// (cli/launcher.cc). The rest is for the network and for slow hosts.
constexpr absl::Duration kLongestStop = absl::Seconds(5);
constexpr size_t kMaxWhyBytes = 100;
constexpr size_t kMaxHostBytes = 255;

std::string Listed(const std::vector<uint32_t>& ranks) {
  const size_t shown = std::min(ranks.size(), kRanksShown);
  const std::string list = absl::StrJoin(
      ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", list,
      shown == ranks.size() ? "" : absl::StrCat(" and ", ranks.size() - shown, " more"));
}

}  // namespace

// A program with several sessions takes part in job "bert" and in "bert-2" and so on
// (worker/python/src/syncline/_names.py). Its launcher knows the first one only.
bool Job::IsOfProgram(const std::string& job, const std::string& run_id) const {
  if (run_id.empty() || run_id != run_id_) return false;
  absl::string_view rest = spec_.name;
  if (!absl::ConsumePrefix(&rest, job)) return false;
  uint32_t number = 0;
  return rest.empty() ||
         (absl::ConsumePrefix(&rest, "-") && absl::SimpleAtoi(rest, &number) &&
          number >= 2 && absl::StrCat(number) == rest);
}

// Returns the ranks that the report concerns. In a job that is not the launcher's own
// these are only the ranks on its host: users choose names and run ids, so that job may
// belong to another launcher.
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

absl::Status Job::OnStop(const LauncherStop& stop, absl::Duration now) {
  if (stop.ranks.empty() || stop.ranks.size() > kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("a launcher reported ", stop.ranks.size(),
                     " ranks, allowed are 1 to ", kMaxWorkers));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckReport(stop.run_id, stop.ranks));
  // Runs without an id cannot be told apart, so this one may be another launcher's.
  if (stop.run_id.empty()) {
    return absl::FailedPreconditionError(
        "a launcher reported ended ranks without a --run-id, so it is not known which "
        "run they are of");
  }
  const std::vector<uint32_t> ranks = StoppedHere(stop);
  if (ranks.empty()) return absl::OkStatus();
  stops_.NoteLauncher(absl::StrCat(Printable(stop.why, kMaxWhyBytes),
                                   " to the launcher at ",
                                   Printable(stop.host, kMaxHostBytes), ", run ",
                                   Printable(run_id_, kMaxJobNameBytes)));
  const std::string what = absl::StrCat(Listed(ranks), ranks.size() == 1 ? " is" : " are",
                                        " being stopped: ", stops_.last_by());
  Report(EventKind::kExit, what);
  const absl::Duration until =
      now + std::max(options_.timeouts.failure_timeout, kLongestStop);
  for (const uint32_t rank : ranks) {
    lost_.erase(rank);
    const JobWorker* worker = workers_.Find(rank);
    if (worker != nullptr) stops_.Add(rank, worker->incarnation, until);
  }
  LetStoppedGo(now);
  return absl::OkStatus();
}

void Job::LetStoppedGo(absl::Duration now) {
  std::vector<uint32_t> gone;
  std::map<std::string, std::vector<uint32_t>> living;  // by what their launcher said
  for (const uint32_t rank : stops_.ranks()) {
    const Stops::Stop stop = stops_.at(rank);
    const JobWorker* worker = workers_.Find(rank, stop.incarnation);
    // The worker left in order, or another process has its rank.
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
  for (const auto& [by, ranks] : living) SayTheyLive(ranks, by);
  for (const uint32_t rank : gone) {
    const std::string what =
        absl::StrCat(workers_.Named(rank), " was stopped with its launcher");
    outbox_.Close(workers_.at(rank).connection, absl::AbortedError(what));
    Forget(rank, EpochCause::kLeave, what);
    Say({.kind = EventKind::kLeave, .what = what});
  }
  EndWhenStopped();
  if (IsOver() || gone.empty()) return;
  MaybeReleaseBarrier();
  MaybeChangeEpoch();
}

void Job::SayTheyLive(const std::vector<uint32_t>& ranks, const std::string& by) const {
  const std::string what =
      absl::StrCat(Listed(ranks), ranks.size() == 1 ? " is" : " are",
                   " still alive, but should have been stopped: ", by);
  Report(EventKind::kExit, what, LogReason::Level::kWarning);
}

void Job::EndWhenStopped() {
  const bool anyone_may_come = !workers_.empty() || !lost_.empty();
  if (IsOver() || saves_last_ || stops_.last_by().empty() || anyone_may_come) return;
  was_stopped_ = true;
  End(absl::StrCat("stopped by ", stops_.last_by()));
}

}  // namespace syncline
