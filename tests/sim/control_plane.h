// The coordinator and its streams, in simulated time: reliable and in order per stream,
// as gRPC is, with random delays and with streams that break.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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
};

class ControlPlane {
 public:
  ControlPlane(EventQueue& events, const CoordinatorOptions& options, uint64_t seed);

  ConnectionId Attach(StreamCallbacks callbacks);
  void Send(ConnectionId connection, MemberBody body);
  // The member's process is gone: nothing reaches it any more, and the coordinator hears
  // of it.
  void Break(ConnectionId connection);

  // What workers say of a job, and send when they are asked to.
  DeclaredSpecs& specs() { return specs_; }

  CoordinatorView View() const { return coordinator_.View(events_.now()); }

 private:
  struct Stream {
    StreamCallbacks callbacks;
    absl::Duration last_up = absl::ZeroDuration();
    absl::Duration last_down = absl::ZeroDuration();
  };

  void Tick();
  void Apply(const CoordinatorInput& input);
  void Perform(const CoordinatorOutput& output);
  absl::Duration ArrivalAfter(absl::Duration& last);

  EventQueue& events_;
  Coordinator coordinator_;
  DeclaredSpecs specs_;
  const absl::Duration tick_period_;
  std::mt19937_64 random_;
  ConnectionId next_connection_ = 1;
  std::map<ConnectionId, Stream> streams_;
};

}  // namespace syncline::sim
