#include "tests/sim/control_plane.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "comm/base/check.h"

namespace syncline::sim {

ControlPlane::ControlPlane(EventQueue& events, const CoordinatorOptions& options,
                           uint64_t seed)
    : events_(events),
      options_(options),
      coordinator_(std::make_unique<Coordinator>(options)),
      tick_period_(options.timeouts.heartbeat_interval / 2),
      random_(seed) {
  events_.After(tick_period_, [this] { Tick(); });
  Apply(Start{});
}

// ---- Crashes ----

void ControlPlane::CrashAfter(int outputs, absl::Duration downtime) {
  if (coordinator_ == nullptr || outputs_left_) return;
  outputs_left_ = outputs;
  downtime_ = downtime;
}

void ControlPlane::Crash() {
  coordinator_.reset();
  outputs_left_.reset();
  ++crashes_;
  for (auto& [connection, stream] : streams_) {
    lost_[connection] = std::move(stream.callbacks.on_lost);
  }
  streams_.clear();
  events_.After(downtime_, [this] { Restart(); });
}

void ControlPlane::Restart() {
  coordinator_ = std::make_unique<Coordinator>(options_);
  if (forgets_) stored_ = stored_before_;
  const absl::Status restored = coordinator_->Restore(stored_, specs_.reader());
  SYNCLINE_CHECK(restored.ok() || forgets_);
  if (!restored.ok()) failure_ = std::string(restored.message());
  for (const auto& [connection, on_lost] : lost_) {
    const int micros = std::uniform_int_distribution<int>(100, 500000)(random_);
    // Break removes a member that dies meanwhile from the list.
    events_.After(absl::Microseconds(micros), [this, connection = connection] {
      const auto lost = lost_.extract(connection);
      if (!lost.empty()) lost.mapped()();
    });
  }
  Apply(Start{});
}

// ---- Streams ----

void ControlPlane::Tick() {
  Apply(syncline::Tick{});
  events_.After(tick_period_, [this] { Tick(); });
}

ConnectionId ControlPlane::Attach(StreamCallbacks callbacks) {
  const ConnectionId connection = next_connection_++;
  if (coordinator_ == nullptr) {
    lost_[connection] = std::move(callbacks.on_lost);
  } else {
    streams_[connection].callbacks = std::move(callbacks);
  }
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
  lost_.erase(connection);
  const auto stream = streams_.find(connection);
  if (stream == streams_.end()) return;
  const absl::Duration delay = ArrivalAfter(stream->second.last_up);
  streams_.erase(stream);
  events_.After(delay, [this, connection] {
    Apply(FromMember{connection, Disconnected{}});
  });
}

void ControlPlane::Apply(const CoordinatorInput& input) {
  if (coordinator_ == nullptr) return;
  for (const CoordinatorOutput& output : coordinator_->Apply(input, events_.now())) {
    if (outputs_left_ && (*outputs_left_)-- == 0) return Crash();
    Perform(output);
  }
  WakeInTime();
}

bool ControlPlane::Exclude(const std::string& job, uint32_t rank) {
  return Order(ExcludeWorker{.job = job, .rank = rank, .why = "it is drawn"});
}

bool ControlPlane::Order(const CoordinatorInput& order) {
  if (!IsUp()) return false;
  bool is_taken = false;
  for (const CoordinatorOutput& output : coordinator_->Apply(order, events_.now())) {
    if (const auto* answer = std::get_if<CallAnswer>(&output)) {
      is_taken = answer->status.ok();
    }
    Perform(output);
  }
  WakeInTime();
  return is_taken;
}

// Plans a Tick for the coordinator's wake_at, as CoordinatorService does.
void ControlPlane::WakeInTime() {
  const absl::Duration wake_at = coordinator_->wake_at();
  if (wake_at == absl::InfiniteDuration() || wake_at == woken_at_) return;
  woken_at_ = wake_at;
  const absl::Duration delay = std::max(wake_at - events_.now(), absl::ZeroDuration());
  events_.After(delay, [this] { Apply(syncline::Tick{}); });
}

void ControlPlane::Perform(const CoordinatorOutput& output) {
  if (const auto* message = std::get_if<ToMember>(&output)) {
    if (const auto* failed = std::get_if<JobFailed>(&message->body)) {
      failure_ = failed->reason;
    }
    const auto stream = streams_.find(message->connection);
    if (stream == streams_.end()) return;
    events_.After(ArrivalAfter(stream->second.last_down), [this, sent = *message] {
      const auto receiver = streams_.find(sent.connection);
      if (receiver != streams_.end()) receiver->second.callbacks.on_message(sent.body);
    });
  }
  if (const auto* prepare = std::get_if<Prepare>(&output)) {
    const int micros = std::uniform_int_distribution<int>(100, 50000)(random_);
    events_.After(absl::Microseconds(micros),
                  [this, order = prepare->order, life = crashes_] {
                    if (life == crashes_) Apply(CarryOut(order, specs_.reader()));
                  });
  }
  if (const auto* persist = std::get_if<PersistState>(&output)) {
    stored_.state = persist->state;
  }
  if (const auto* record = std::get_if<StoreRecord>(&output)) {
    if (forgets_) stored_before_ = stored_;
    stored_.records.erase(record->key);
    if (record->value != nullptr) stored_.records[record->key] = *record->value;
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
