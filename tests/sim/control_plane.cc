#include "tests/sim/control_plane.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace syncline::sim {

ControlPlane::ControlPlane(EventQueue& events, const CoordinatorOptions& options,
                           uint64_t seed)
    : events_(events),
      coordinator_(options),
      tick_period_(options.timeouts.heartbeat_interval / 2),
      random_(seed) {
  events_.After(tick_period_, [this] { Tick(); });
}

void ControlPlane::Tick() {
  Apply(syncline::Tick{});
  events_.After(tick_period_, [this] { Tick(); });
}

ConnectionId ControlPlane::Attach(StreamCallbacks callbacks) {
  const ConnectionId connection = next_connection_++;
  streams_[connection].callbacks = std::move(callbacks);
  return connection;
}

// Messages of one direction of one stream never overtake each other.
absl::Duration ControlPlane::ArrivalAfter(absl::Duration& last) {
  const absl::Duration delay =
      absl::Microseconds(std::uniform_int_distribution<int>(100, 3000)(random_));
  last = std::max(events_.now() + delay, last + absl::Nanoseconds(1));
  return last - events_.now();
}

void ControlPlane::Send(ConnectionId connection, MemberBody body) {
  const auto stream = streams_.find(connection);
  if (stream == streams_.end()) return;
  events_.After(ArrivalAfter(stream->second.last_up),
                [this, connection, body = std::move(body)] {
                  if (streams_.contains(connection)) Apply(FromMember{connection, body});
                });
}

void ControlPlane::Break(ConnectionId connection) {
  const auto stream = streams_.find(connection);
  if (stream == streams_.end()) return;
  const absl::Duration delay = ArrivalAfter(stream->second.last_up);
  streams_.erase(stream);
  events_.After(delay, [this, connection] {
    Apply(FromMember{connection, Disconnected{}});
  });
}

void ControlPlane::Apply(const CoordinatorInput& input) {
  for (const CoordinatorOutput& output : coordinator_.Apply(input, events_.now()))
    Perform(output);
}

void ControlPlane::Perform(const CoordinatorOutput& output) {
  if (const auto* message = std::get_if<ToMember>(&output)) {
    const auto stream = streams_.find(message->connection);
    if (stream == streams_.end()) return;
    events_.After(ArrivalAfter(stream->second.last_down), [this, sent = *message] {
      const auto receiver = streams_.find(sent.connection);
      if (receiver != streams_.end()) receiver->second.callbacks.on_message(sent.body);
    });
  }
  if (const auto* prepare = std::get_if<Prepare>(&output)) {
    const int micros = std::uniform_int_distribution<int>(100, 50000)(random_);
    events_.After(absl::Microseconds(micros), [this, order = prepare->order] {
      Apply(CarryOut(order, specs_.reader()));
    });
  }
  if (const auto* close = std::get_if<CloseMember>(&output)) {
    const auto stream = streams_.find(close->connection);
    if (stream == streams_.end()) return;
    events_.After(ArrivalAfter(stream->second.last_down), [this, closed = *close] {
      const auto receiver = streams_.find(closed.connection);
      if (receiver == streams_.end()) return;
      const StreamCallbacks callbacks = std::move(receiver->second.callbacks);
      streams_.erase(receiver);
      callbacks.on_end(closed.status);
    });
  }
}

}  // namespace syncline::sim
