// The coordinator's side of traces (docs/adr/0030-traces.md): whom to order to record, up
// to which step, and what they have sent until the caller takes it.
//
// A trace goes through: servers (ordered, and answer that they record), workers (likewise;
// each says the first step that it records whole), recording (from the highest of these
// steps on, so many), done. Servers come first: what workers push in the window finds them
// recording. Whoever does not answer in time is not waited for, and said to be missing.
//
// One trace at a time; one whose caller has not asked for a while gives way. What members
// send beyond kMaxBytes of a trace is dropped and counted.
//
// Pure: times and connections come from the caller. Not thread-safe.
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
  // Members answer from a thread that waits for nothing else.
  static constexpr absl::Duration kAnswerWithin = absl::Seconds(2);
  // Servers whose job is over are still to send with a heartbeat what they have.
  static constexpr absl::Duration kLastPartsWithin = absl::Seconds(3);
  // The caller asks several times a second.
  static constexpr absl::Duration kForgottenAfter = absl::Seconds(10);

  // To be sent, each to its connection.
  using Orders = std::vector<std::pair<uint64_t, v1::TraceOrder>>;

  // `id` names it among all traces, those of other lives of the coordinator too.
  // InvalidArgument for steps and limits that are none,
  // FailedPrecondition when the job has no worker, or another trace is under way.
  absl::Status Begin(uint64_t id, const v1::StartTraceRequest& request,
                     const TraceTargets& targets, absl::Duration now, Orders& orders);

  // What a member says. Of other traces, or members that were not ordered: ignored.
  void Take(uint64_t connection, const v1::TracePart& part, absl::Duration now,
            Orders& orders);

  // What there is. `present`: who is there of the job; none when it is over. NotFound for
  // another trace than the present one.
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
    absl::Duration since = {};  // in this phase
    absl::Duration asked_at = {};
    uint64_t first_step = 0;
    uint64_t until = 0;
    std::optional<absl::Duration> over_since = std::nullopt;  // the job
    std::vector<Member> members = {};
    std::deque<v1::FetchedPart> parts = {};  // not taken yet
    uint64_t taken = 0;                      // parts before them
    size_t bytes = 0;                        // of all parts, those that were taken too
  };

  static const char* NameOf(Phase phase);
  void Order(TraceTarget::Role role, Orders& orders);
  void OrderAll(uint64_t until, Orders& orders);
  v1::TraceOrder OrderOf(uint64_t until) const;
  bool AllAnswered(TraceTarget::Role role) const;
  void Enter(Phase phase, absl::Duration now);
  void Advance(absl::Duration now, Orders& orders);

  std::unique_ptr<Trace> trace_;  // null: none yet
};

}  // namespace syncline
