#include "server/service/trace_desk.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

// Bytes of data in one reply, far below the limit of a message.
constexpr size_t kReplyBytes = size_t{4} << 20;

}  // namespace

const char* TraceDesk::NameOf(Phase phase) {
  switch (phase) {
    case Phase::kServers:
      return "servers";
    case Phase::kWorkers:
      return "workers";
    case Phase::kRecording:
      return "recording";
    case Phase::kDone:
      return "done";
  }
  return "";
}

absl::Status TraceDesk::Begin(uint64_t id, const v1::StartTraceRequest& request,
                              const TraceTargets& targets, absl::Duration now,
                              Orders& orders) {
  if (request.steps() == 0 || request.steps() > kMaxSteps) {
    return absl::InvalidArgumentError(absl::StrCat("a trace of ", request.steps(),
                                                   " steps is not possible; it has 1 to ",
                                                   kMaxSteps));
  }
  const absl::Duration limit = absl::Milliseconds(request.limit_ms());
  if (limit <= absl::ZeroDuration() || limit > kMaxLimit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a trace of ", absl::FormatDuration(limit), " is not possible; it takes at most ",
        absl::FormatDuration(kMaxLimit)));
  }
  if (std::ranges::none_of(targets.members, [](const TraceTarget& target) {
        return target.role == TraceTarget::Role::kWorker;
      })) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", Printable(request.job()),
                     "' has no worker that makes steps; see syncline status"));
  }
  const bool is_busy =
      trace_ && trace_->phase != Phase::kDone && now - trace_->asked_at < kForgottenAfter;
  if (is_busy) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job '", Printable(trace_->job),
        "' is being traced, and there is one trace at a time; try again later"));
  }
  trace_ = std::make_unique<Trace>();
  Trace& trace = *trace_;
  trace = {.id = id,
           .job = request.job(),
           .job_id = targets.job,
           .steps = request.steps(),
           .limit_ms = request.limit_ms(),
           .since = now,
           .asked_at = now};
  for (const TraceTarget& target : targets.members) {
    trace.members.push_back({.target = target});
  }
  Order(TraceTarget::Role::kServer, orders);
  Advance(now, orders);
  return absl::OkStatus();
}

v1::TraceOrder TraceDesk::OrderOf(uint64_t until) const {
  v1::TraceOrder order;
  order.set_trace(trace_->id);
  order.set_job(trace_->job_id);
  order.set_until(until);
  order.set_limit_ms(trace_->limit_ms);
  return order;
}

void TraceDesk::Order(TraceTarget::Role role, Orders& orders) {
  for (Member& member : trace_->members) {
    if (member.target.role != role || member.gone) continue;
    member.ordered = true;
    orders.emplace_back(member.target.connection, OrderOf(0));
  }
}

void TraceDesk::OrderAll(uint64_t until, Orders& orders) {
  for (const Member& member : trace_->members) {
    if (member.ordered && !member.gone) {
      orders.emplace_back(member.target.connection, OrderOf(until));
    }
  }
}

bool TraceDesk::AllAnswered(TraceTarget::Role role) const {
  return std::ranges::all_of(trace_->members, [role](const Member& member) {
    return member.target.role != role || member.answered || member.gone;
  });
}

void TraceDesk::Enter(Phase phase, absl::Duration now) {
  trace_->phase = phase;
  trace_->since = now;
}

void TraceDesk::Advance(absl::Duration now, Orders& orders) {
  Trace& trace = *trace_;
  const auto waited = [&] { return now - trace.since >= kAnswerWithin; };
  if (trace.phase == Phase::kServers &&
      (AllAnswered(TraceTarget::Role::kServer) || waited())) {
    Enter(Phase::kWorkers, now);
    Order(TraceTarget::Role::kWorker, orders);
  }
  if (trace.phase == Phase::kWorkers &&
      (AllAnswered(TraceTarget::Role::kWorker) || waited())) {
    Enter(Phase::kRecording, now);
    for (const Member& member : trace.members) {
      trace.first_step = std::max(trace.first_step, member.first_step);
    }
    trace.until = trace.first_step + trace.steps;
    OrderAll(trace.until, orders);
  }
  const bool is_over = std::ranges::all_of(trace.members, [](const Member& member) {
    return !member.answered || member.done || member.gone;
  });
  if (trace.phase == Phase::kRecording && is_over) Enter(Phase::kDone, now);
}

void TraceDesk::Take(uint64_t connection, const v1::TracePart& part, absl::Duration now,
                     Orders& orders) {
  if (!trace_ || part.trace() != trace_->id) return;
  const auto found = std::ranges::find_if(trace_->members, [&](const Member& member) {
    return member.target.connection == connection && member.ordered;
  });
  if (found == trace_->members.end()) return;
  Member& member = *found;
  if (!member.answered) member.first_step = part.first_step();
  member.answered = true;
  member.lost = std::max(member.lost, part.lost());
  if (part.has_clock()) member.clock = part.clock();
  const size_t bytes = part.packed().size() + part.track().size();
  if (!part.packed().empty() && trace_->bytes + bytes > kMaxBytes) {
    member.dropped += part.spans();
  } else if (!part.packed().empty()) {
    trace_->bytes += bytes;
    v1::FetchedPart& kept = trace_->parts.emplace_back();
    kept.set_member(static_cast<uint32_t>(found - trace_->members.begin()));
    kept.set_track(part.track());
    kept.set_packed(part.packed());
  }
  member.done = member.done || part.last();
  Advance(now, orders);
}

absl::Status TraceDesk::Fetch(const v1::FetchTraceRequest& request,
                              const TraceTargets& present, absl::Duration now,
                              v1::FetchTraceReply& reply, Orders& orders) {
  if (!trace_ || trace_->id != request.trace() || trace_->job != request.job()) {
    return absl::NotFoundError(absl::StrCat(
        "the coordinator knows no trace ", request.trace(), " of job '",
        Printable(request.job()), "': another one began, or it was restarted"));
  }
  Trace& trace = *trace_;
  trace.asked_at = now;
  if (!present.members.empty()) trace.over_since.reset();
  if (present.members.empty() && !trace.over_since) trace.over_since = now;
  const bool may_follow = trace.over_since && now - *trace.over_since < kLastPartsWithin;
  for (Member& member : trace.members) {
    if (may_follow && member.target.role == TraceTarget::Role::kServer) continue;
    const bool is_there =
        std::ranges::any_of(present.members, [&](const TraceTarget& target) {
          return target.connection == member.target.connection;
        });
    member.gone = !is_there && !member.done;
  }
  if (request.stop()) OrderAll(1, orders);
  Advance(now, orders);
  while (trace.taken < request.seen() && !trace.parts.empty()) {
    trace.parts.pop_front();
    ++trace.taken;
  }
  reply.set_phase(NameOf(trace.phase));
  reply.set_first_step(trace.first_step);
  reply.set_until(trace.until);
  for (const Member& member : trace.members) {
    v1::TraceMember& out = *reply.add_members();
    out.set_role(member.target.role == TraceTarget::Role::kServer ? "server" : "worker");
    out.set_number(member.target.number);
    out.set_incarnation(member.target.incarnation);
    out.set_name(member.target.name);
    out.set_answered(member.answered);
    out.set_done(member.done);
    out.set_gone(member.gone);
    out.set_lost(member.lost);
    out.set_dropped(member.dropped);
    if (member.clock) *out.mutable_clock() = *member.clock;
  }
  size_t bytes = 0;
  for (const v1::FetchedPart& part : trace.parts) {
    if (bytes > kReplyBytes) break;
    bytes += part.packed().size();
    *reply.add_parts() = part;
  }
  reply.set_more(static_cast<size_t>(reply.parts_size()) < trace.parts.size());
  return absl::OkStatus();
}

}  // namespace syncline
