// The coordinator's side of traces (docs/adr/0030-traces.md): decides which members
// record, and up to which step, and keeps what they send until the caller fetches it.
//
// A trace has four phases. `servers`: servers are ordered to record, and answer that they
// do. `workers`: the same for workers; each answer names the first step that the worker
// records whole. `recording`: the highest of these steps is the first one of the trace,
// and all record the wanted number of steps from there. `done`. Servers come first, so
// that they record already when the first pushes of the trace arrive. A member that does
// not answer in time is reported as missing, and nothing waits for it.
//
// There is one trace at a time. If its caller has not asked for a while, another trace
// may replace it. Data of a trace beyond kMaxBytes is dropped and counted.
//
// It does no I/O; times and connections come from the caller.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/trace_targets.h"

namespace syncline {

class TraceDesk {
 public:
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  static constexpr uint32_t kMaxSteps = 10000;
  static constexpr absl::Duration kMaxLimit = absl::Minutes(30);
  // Members answer from a thread that never blocks for long.
  static constexpr absl::Duration kAnswerWithin = absl::Seconds(2);
  // When a job is over, its servers still send what they have with their next heartbeat.
  static constexpr absl::Duration kLastPartsWithin = absl::Seconds(3);
  // A trace may be replaced when its caller has not asked for this long. Callers ask
  // several times a second.
  static constexpr absl::Duration kForgottenAfter = absl::Seconds(10);

  // Orders to send, each to its connection.
  using Orders = std::vector<std::pair<uint64_t, v1::TraceOrder>>;

  // Begins a trace. `id` must be unique among all traces, also those of earlier
  // coordinator processes. Fails with InvalidArgument if the number of steps or the time
  // limit is out of range, and with FailedPrecondition if the job has no worker or
  // another trace is under way.
  absl::Status Begin(uint64_t id, const v1::StartTraceRequest& request,
                     const TraceTargets& targets, absl::Duration now, Orders& orders);

  // Takes what a member sent. Ignores other traces, and members that were not ordered to
  // record.
  void Take(uint64_t connection, const v1::TracePart& part, absl::Duration now,
            Orders& orders);

  // Returns the state of the trace, and data from part `seen` on. `present`: the present
  // members of the job; empty when the job is over. Fails with NotFound for any trace but
  // the present one.
  absl::Status Fetch(const v1::FetchTraceRequest& request, const TraceTargets& present,
                     absl::Duration now, v1::FetchTraceReply& reply, Orders& orders);

 private:
  enum class Phase { kServers, kWorkers, kRecording, kDone };
  struct Member {
    TraceTarget target = {};
    bool ordered = false;
    bool answered = false;
    bool done = false;
    bool gone = false;
    uint64_t first_step = 0;
    uint64_t lost = 0;
    uint64_t dropped = 0;
    std::optional<v1::TraceClock> clock = std::nullopt;
  };
  struct Trace {
    uint64_t id = 0;
    std::string job = {};
    uint32_t job_id = 0;
    uint32_t steps = 0;
    uint32_t limit_ms = 0;
    Phase phase = Phase::kServers;
    absl::Duration since = {};  // when this phase began
    absl::Duration asked_at = {};
    uint64_t first_step = 0;
    uint64_t until = 0;
    // When the job was first seen to be over.
    std::optional<absl::Duration> over_since = std::nullopt;
    std::vector<Member> members = {};
    std::deque<v1::FetchedPart> parts = {};  // not fetched yet
    uint64_t taken = 0;                      // number of parts that were fetched before
    size_t bytes = 0;                        // of all parts, also the fetched ones
  };

  static const char* NameOf(Phase phase);
  void Order(TraceTarget::Role role, Orders& orders);
  void OrderAll(uint64_t until, Orders& orders);
  v1::TraceOrder OrderOf(uint64_t until) const;
  bool AllAnswered(TraceTarget::Role role) const;
  void Enter(Phase phase, absl::Duration now);
  void Advance(absl::Duration now, Orders& orders);

  std::unique_ptr<Trace> trace_;  // null: there was none yet
};

}  // namespace syncline
