// How a job closes steps to which some members have not contributed (quorum.h, ADR 26).
//
// After a restart of the coordinator, servers that had not heard of a closed step are
// told again, before any epoch that they have not heard of either. The contributions to
// the step arrived under earlier epochs, and a commit without one of its contributors
// would discard them.
#include <algorithm>
#include <utility>

#include "server/coordinator/job.h"

namespace syncline {

void Job::OnHeld(const StepHeld& held) {
  if (phase_ != Phase::kRunning || !HasQuorum()) return;
  quorum_.Held(held);
  may_close_ = true;
}

absl::Duration Job::wake_at() const {
  return phase_ == Phase::kRunning ? quorum_.wake_at() : absl::InfiniteDuration();
}

void Job::CloseStep(absl::Duration now) {
  if (phase_ != Phase::kRunning || !HasQuorum()) return;
  if (homecoming_ && !homecoming_->HasAllServers()) return;
  const bool is_due = std::exchange(may_close_, false) || now >= quorum_.wake_at();
  if (!is_due) return;
  const auto verdict = quorum_.Look(now, begun_.members);
  if (!verdict) return;
  closed_ = StepClosed{
      .job = id_, .step = verdict->step, .incarnations = verdict->incarnations};
  quorum_.Closed(verdict->step);
  NoteLeftOut(*closed_);
  ToServers(*closed_);
}

void Job::NoteLeftOut(const StepClosed& closed) {
  for (const MemberRecord& member : begun_.members) {
    const bool counts =
        std::ranges::binary_search(closed.incarnations, member.incarnation);
    if (member.first_step > closed.step || counts) continue;
    ++left_out_;
    JobWorker* worker = workers_.Find(member.rank, member.incarnation);
    if (worker != nullptr) ++worker->left_out;
  }
}

// ---- A coordinator that was restarted ----

void Job::TakeClosed(const HeldJob& held) {
  if (!held.closed || (closed_ && held.closed->step <= closed_->step)) return;
  closed_ = held.closed;
  quorum_.Closed(closed_->step);
}

void Job::InformServers() {
  for (const JobServer& server : places_) {
    const bool lacks_step =
        closed_ && homecoming_->LacksClosed(server.server, closed_->step);
    if (lacks_step) outbox_.Send(server.connection, *closed_);
    if (change_->uncommitted.contains(server.server)) SendCommit(server);
  }
  may_close_ = true;
}

}  // namespace syncline
