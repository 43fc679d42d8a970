// The coordinator and its streams in simulated time. Like gRPC, a stream is reliable and
// in order. It has random delays, and it may break. The coordinator may crash between any
// two of its outputs: all streams end, messages under way are lost, and the next
// coordinator continues with the stored state.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "comm/base/event_queue.h"
#include "comm/base/timeouts.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/declaration_test_util.h"

namespace syncline::sim {

struct StreamCallbacks {
  std::function<void(const CoordinatorBody&)> on_message;
  std::function<void(const absl::Status&)> on_end;
  // The coordinator was restarted, and does not know this stream.
  std::function<void()> on_lost = [] {};
};

class ControlPlane {
 public:
  ControlPlane(EventQueue& events, const CoordinatorOptions& options, uint64_t seed);

  ConnectionId Attach(StreamCallbacks callbacks);
  void Send(ConnectionId connection, MemberBody body);
  // Ends the stream of a member whose process is gone. It gets no more messages, and the
  // coordinator is told.
  void Break(ConnectionId connection);

  // Kills the coordinator after `outputs` more outputs, and starts the next one after
  // `downtime`. Does nothing if it is down, or a crash is already planned.
  void CrashAfter(int outputs, absl::Duration downtime);

  // Updates the job like an operator. Returns whether the coordinator accepted the
  // update; false while it is down.
  bool Update(const UpdateJob& update) { return Order(update); }

  // Excludes a worker, as goal_answers.h does. Returns whether it was a member.
  bool Exclude(const std::string& job, uint32_t rank);

  // Plants a fault: the coordinator restarts without the last record that it stored.
  void ForgetLastRecord() { forgets_ = true; }

  // Declarations of jobs, which workers send if the coordinator asks for them.
  DeclaredSpecs& specs() { return specs_; }

  CoordinatorView View() const {
    return coordinator_ == nullptr ? CoordinatorView()
                                   : coordinator_->View(events_.now());
  }
  bool IsUp() const { return coordinator_ != nullptr && !outputs_left_; }
  int crashes() const { return crashes_; }
  // Why a job has failed; empty: none has. Workers start a failed job again.
  const std::string& failure() const { return failure_; }

 private:
  struct Stream {
    StreamCallbacks callbacks;
    absl::Duration last_up = absl::ZeroDuration();
    absl::Duration last_down = absl::ZeroDuration();
  };

  void Tick();
  void Apply(const CoordinatorInput& input);
  bool Order(const CoordinatorInput& order);
  void WakeInTime();
  void Perform(const CoordinatorOutput& output);
  absl::Duration ArrivalAfter(absl::Duration& last);
  void Crash();
  void Restart();

  EventQueue& events_;
  const CoordinatorOptions options_;
  std::unique_ptr<Coordinator> coordinator_;  // null while it is down
  int crashes_ = 0;
  std::string failure_;
  std::optional<int> outputs_left_ = {};  // number until it crashes; empty: no crash
  absl::Duration woken_at_ = {};          // time for which a Tick is planned
  absl::Duration downtime_ = {};
  bool forgets_ = false;
  StoredState stored_;
  StoredState stored_before_;                           // stored_ without the last record
  std::map<ConnectionId, std::function<void()>> lost_;  // on_lost of lost streams
  DeclaredSpecs specs_;
  const absl::Duration tick_period_;
  std::mt19937_64 random_;
  ConnectionId next_connection_ = 1;
  std::map<ConnectionId, Stream> streams_;
};

}  // namespace syncline::sim
