// The coordinator and its streams, in simulated time: reliable and in order per stream,
// as gRPC is, with random delays and with streams that break. The coordinator may crash, in
// the middle of what it gives out: all streams end, what is on its way is lost, and the
// next one goes on with what was stored.
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
  // The coordinator was started anew, and knows nothing of this stream.
  std::function<void()> on_lost = [] {};
};

class ControlPlane {
 public:
  ControlPlane(EventQueue& events, const CoordinatorOptions& options, uint64_t seed);

  ConnectionId Attach(StreamCallbacks callbacks);
  void Send(ConnectionId connection, MemberBody body);
  // The member's process is gone: nothing reaches it any more, and the coordinator hears
  // of it.
  void Break(ConnectionId connection);

  // The coordinator dies once it has carried out so many more outputs, and the next one
  // starts after that time. One that is down already stays so.
  void CrashAfter(int outputs, absl::Duration downtime);

  // As from an operator. Whether it was taken; no, while it is down.
  bool Update(const UpdateJob& update) { return Order(update); }

  // As goal_answers.h has it. Whether that worker was a member.
  bool Exclude(const std::string& job, uint32_t rank);

  // A planted fault: it comes back without the last thing that it had stored.
  void ForgetLastRecord() { forgets_ = true; }

  // What workers say of a job, and send when they are asked to.
  DeclaredSpecs& specs() { return specs_; }

  CoordinatorView View() const {
    return coordinator_ == nullptr ? CoordinatorView()
                                   : coordinator_->View(events_.now());
  }
  bool IsUp() const { return coordinator_ != nullptr && !outputs_left_; }
  int crashes() const { return crashes_; }
  // Why a job has failed, should one have; workers begin it anew.
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
  std::optional<int> outputs_left_ = {};  // until it crashes
  absl::Duration woken_at_ = {};          // for which a Tick is planned
  absl::Duration downtime_ = {};
  bool forgets_ = false;
  StoredState stored_;
  StoredState stored_before_;                           // without the last record
  std::map<ConnectionId, std::function<void()>> lost_;  // streams
  DeclaredSpecs specs_;
  const absl::Duration tick_period_;
  std::mt19937_64 random_;
  ConnectionId next_connection_ = 1;
  std::map<ConnectionId, Stream> streams_;
};

}  // namespace syncline::sim
