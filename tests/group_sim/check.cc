#include "tests/group_sim/check.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/collective/group/tcp_lane.h"

namespace syncline::group_sim {
namespace {

absl::Status Wrong(const Life& life, const Life::Called& called,
                   const std::string& what) {
  return absl::InternalError(absl::StrCat(
      "process ", life.process(), " as rank ", life.rank(), ", operation ", called.number,
      " (", std::string(collective::CollectiveName(called.operation.op)), " of ",
      called.operation.count, " ",
      std::string(collective::ElementName(called.operation.type)), "): ", what));
}

// The causes of failure in an epoch before a time.
struct Blame {
  std::set<int> ranks;
  bool is_anyones = false;  // ranks disagreed, and each may name another one
  bool has_left = false;
  bool is_absent = false;
  absl::Duration last = -absl::InfiniteDuration();
};

Blame BlameBefore(const Epoch& epoch, absl::Duration time) {
  Blame blame;
  for (size_t i = 0; i < epoch.plan.incidents.size(); ++i) {
    const Incident& incident = epoch.plan.incidents[i];
    const auto rank = static_cast<size_t>(incident.rank);
    const auto happened = epoch.lives[rank]->happened()[i];
    if (!happened.has_value()) continue;
    for (const absl::Duration at : {*happened - incident.length, *happened}) {
      if (at <= time) blame.last = std::max(blame.last, at);
    }
    if (incident.trouble == Trouble::kPause) continue;
    blame.ranks.insert(incident.rank);
    if (incident.trouble == Trouble::kCut) blame.ranks.insert(incident.other);
    blame.is_anyones |= incident.trouble == Trouble::kOddCall;
    blame.has_left |= incident.trouble == Trouble::kLeave;
    blame.is_absent |= incident.trouble == Trouble::kAbsent;
  }
  return blame;
}

absl::Duration Entered(const Life& life, size_t number) {
  for (const auto& called : life.called()) {
    if (called->number == number) return called->entered;
  }
  return absl::InfiniteDuration();
}

// Returns when it was the operation's turn: the earlier ones in its queue had ended.
absl::Duration Began(const Life& life, const Life::Called& called) {
  const auto is_direct = [](const Life::Called& one) {
    return one.operation.op == collective::CollectiveOp::kSendReceive;
  };
  absl::Duration began = Entered(life, called.number);
  for (const auto& before : life.called()) {
    if (before->number >= called.number || is_direct(*before) != is_direct(called)) {
      continue;
    }
    const bool is_well = before->pending->done && before->pending->status.ok();
    began = std::max(began, is_well ? before->ended : absl::InfiniteDuration());
  }
  return began;
}

// Returns when all live ranks were in the operation, or knew that the group is over.
absl::Duration AllThere(const Epoch& epoch, const Life::Called& called) {
  absl::Duration there = called.entered;
  for (const auto& life : epoch.lives) {
    if (life->is_dead()) continue;
    const absl::Duration its = std::min(life->failed_at(), Began(*life, called));
    if (its <= called.ended) there = std::max(there, its);
  }
  return there;
}

// Whether some operation ended at its deadline because this rank was missing. A rank that
// itself waits for a missing rank, in another operation, may also be such a rank.
bool WasLate(const Epoch& epoch, int rank, absl::Duration now) {
  const Life& named = *epoch.lives[static_cast<size_t>(rank)];
  for (const auto& life : epoch.lives) {
    for (const auto& called : life->called()) {
      const absl::Duration deadline = called->entered + epoch.plan.timeout;
      if (!TakesPart(called->operation, rank) || deadline > now) continue;
      if (Began(named, *called) >= deadline) return true;
    }
  }
  return false;
}

absl::Status CheckError(const Epoch& epoch, const Life& life, const Life::Called& called,
                        absl::Duration most_delay) {
  const absl::Status& status = called.pending->status;
  const Blame blame = BlameBefore(epoch, called.ended);
  const std::string said = absl::StrCat("it ended with '", status.ToString(), "'");
  if (blame.ranks.empty()) return Wrong(life, called, said + ", and nothing happened");
  const auto failed = collective::FailedRank(status);
  const bool is_goodbye = absl::IsCancelled(status) && blame.has_left;
  if (!failed.has_value() && !is_goodbye) {
    return Wrong(life, called, said + ", which names nobody");
  }
  const bool is_late = failed.has_value() && absl::IsDeadlineExceeded(status) &&
                       WasLate(epoch, *failed, called.ended);
  if (failed.has_value() && !blame.is_anyones && !is_late &&
      !blame.ranks.contains(*failed)) {
    return Wrong(life, called, said + ", which names an innocent rank");
  }
  const bool is_typed = absl::IsAborted(status) || is_goodbye ||
                        (blame.is_absent && absl::IsDeadlineExceeded(status)) ||
                        (blame.is_anyones && absl::IsFailedPrecondition(status));
  if (!is_typed) return Wrong(life, called, said + ", of the wrong type");
  absl::Duration until = std::max(AllThere(epoch, called), blame.last) + most_delay;
  if (blame.is_absent) until += epoch.plan.timeout;
  if (called.ended > until) {
    return Wrong(
        life, called,
        absl::StrCat(said, " ", absl::FormatDuration(called.ended - until), " too late"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Duration MostDelay(const Plan& plan) {
  absl::Duration delay = 1.25 * plan.failure_timeout + absl::Milliseconds(50) +
                         8 * plan.network.faults.max_delay;
  if (plan.network.failure_delay < absl::InfiniteDuration()) {
    delay += plan.network.failure_delay;
  }
  // A report waits behind the contents of both lanes.
  if (plan.bytes_per_second > 0) {
    delay += absl::Seconds(2.0 * static_cast<double>(collective::kLaneWindow) /
                           plan.bytes_per_second);
  }
  return delay;
}

absl::Status CheckLife(const Epoch& epoch, const Life& life, absl::Duration most_delay) {
  for (const auto& called : life.called()) {
    if (!called->pending->done) return Wrong(life, *called, "it is still under way");
    if (!called->pending->status.ok()) {
      SYNCLINE_RETURN_IF_ERROR(CheckError(epoch, life, *called, most_delay));
      continue;
    }
    const auto differs =
        Differs(called->operation, life.rank(), epoch.plan.ranks, called->output);
    if (differs.has_value()) {
      return Wrong(life, *called, "it ended well, but " + *differs);
    }
  }
  return CheckUntouched(life);
}

absl::Status CheckUntouched(const Life& life) {
  for (const auto& called : life.called()) {
    if (called->memory.input != called->input) {
      return Wrong(life, *called, "its input was written to");
    }
    if (called->pending->done && called->memory.output != called->output) {
      return Wrong(life, *called, "its output was written after its end");
    }
  }
  return absl::OkStatus();
}

}  // namespace syncline::group_sim
