// The coordinator and its streams in simulated time. Like gRPC, a stream is reliable and
// in order. It has random delays, and it may break. The coordinator may crash between any
// two of its outputs: all streams end, messages under way are lost, and the next
// coordinator continues with the stored state.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "comm/base/event_queue.h"
#include "comm/base/timeouts.h"
#include "comm/transport/inproc/host_cables.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/declaration_test_util.h"

namespace syncline::sim {

struct StreamCallbacks {
  std::function<void(const CoordinatorBody&)> on_message;
  std::function<void(const absl::Status&)> on_end;
  // The coordinator was restarted, and does not know this stream.
  std::function<void()> on_lost = [] {};
  std::string host = {};  // the member's, if hosts have cables (UseCables)
};

class ControlPlane {
 public:
  ControlPlane(EventQueue& events, const CoordinatorOptions& options, uint64_t seed);

  // Messages between the coordinator on this host and members on others also cross their
  // hosts' cables, kMessageBytes each. REQUIRES: nobody has attached yet.
  static constexpr size_t kMessageBytes = 512;
  void UseCables(HostCables& cables, std::string host);
  // Number of messages on cables so far.
  uint64_t messages() const { return messages_; }

  ConnectionId Attach(StreamCallbacks callbacks);
  void Send(ConnectionId connection, MemberBody body);
  // Ends the stream of a member whose process is gone. It gets no more messages, and the
  // coordinator is told.
  void Break(ConnectionId connection) { End(connection, Disconnected{}); }
  // The same for a member that leaves in order.
  void Leave(ConnectionId connection) { End(connection, syncline::Leave{}); }

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
  // One direction of a stream.
  struct Way {
    absl::Duration last_arrival = absl::ZeroDuration();
    // With cables: what happens when the messages under way have crossed them.
    std::shared_ptr<HostCables::Flow> flow = {};
    std::deque<std::function<void()>> crossing = {};
    size_t crossed_bytes = 0;

    Way() = default;
    Way(const Way&) = delete;
    Way& operator=(const Way&) = delete;
    ~Way() {
      if (flow != nullptr) flow->Close();
    }
  };
  struct Stream {
    StreamCallbacks callbacks;
    Way up, down;
  };

  void Tick();
  void Apply(const CoordinatorInput& input);
  bool Order(const CoordinatorInput& order);
  void WakeInTime();
  void Perform(const CoordinatorOutput& output);
  absl::Duration ArrivalAfter(Way& way);
  // Calls `arrive` when a message that is sent now has arrived.
  void Post(Way& way, std::function<void()> arrive);
  void OpenWay(Way& way, const std::string& from, const std::string& to);
  void End(ConnectionId connection, MemberBody said);
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
  HostCables* cables_ = nullptr;
  std::string host_ = {};
  uint64_t messages_ = 0;
  ConnectionId next_connection_ = 1;
  std::map<ConnectionId, Stream> streams_;
};

}  // namespace syncline::sim
