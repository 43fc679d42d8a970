#include "comm/transport/inproc/host_cables.h"

#include <algorithm>
#include <utility>

#include "comm/base/check.h"

namespace syncline {
namespace {

// TCP sends so many milliseconds of its rate at once, as one large frame
// (tcp_tso_autosize in Linux). Here it limits the number of events.
constexpr absl::Duration kFrameTime = absl::Milliseconds(2);
constexpr size_t kMostFrames = 44;  // 64 KiB

absl::Duration TimeFor(size_t data_bytes, double rate) {
  if (rate <= 0) return absl::ZeroDuration();
  const double on_wire = static_cast<double>(data_bytes) *
                         static_cast<double>(HostCables::kFrameBytes) /
                         static_cast<double>(HostCables::kFrameData);
  return absl::Seconds(on_wire / rate);
}

}  // namespace

absl::Duration HostCables::Lane::Cross(size_t data_bytes, absl::Duration now) {
  const absl::Duration time = TimeFor(data_bytes, rate);
  busy += time;
  return free_at = std::max(now, free_at) + time;
}

void HostCables::Lay(const std::string& host, const CableRates& rates) {
  Cable& cable = cables_[host];
  cable.up.rate = rates.up;
  cable.down.rate = rates.down;
}

bool HostCables::AreLimited(const std::string& from, const std::string& to) const {
  if (from == to) return false;
  const auto sender = cables_.find(from), receiver = cables_.find(to);
  return (sender != cables_.end() && sender->second.up.rate > 0) ||
         (receiver != cables_.end() && receiver->second.down.rate > 0);
}

std::shared_ptr<HostCables::Flow> HostCables::Open(const std::string& from,
                                                   const std::string& to,
                                                   OnArrival on_arrival) {
  return std::make_shared<Flow>(*this, cables_[from].up, cables_[to].down,
                                std::move(on_arrival));
}

absl::Duration HostCables::BusyTime(const std::string& host) const {
  const auto cable = cables_.find(host);
  if (cable == cables_.end()) return absl::ZeroDuration();
  return std::max(cable->second.up.busy, cable->second.down.busy);
}

// ---- Flows ----

void HostCables::Flow::Write(size_t bytes) {
  SYNCLINE_CHECK(bytes > 0);
  if (on_arrival_ == nullptr) return;
  unsent_ += bytes;
  Pump();
}

void HostCables::Flow::Close() {
  on_arrival_ = nullptr;
  unsent_ = 0;
}

// Returns the rate of the slower of the two cables that have a limit; 0: none has one.
double HostCables::Flow::SlowerRate() const {
  if (up_.rate <= 0 || down_.rate <= 0) return std::max(up_.rate, down_.rate);
  return std::min(up_.rate, down_.rate);
}

size_t HostCables::Flow::NextFrame() const {
  const double in_time = SlowerRate() * absl::ToDoubleSeconds(kFrameTime) / kFrameBytes;
  const double of_window = window_ / 2 / kFrameData;  // two may follow each other
  const auto frames = static_cast<size_t>(std::min(in_time, of_window));
  const size_t most = std::clamp<size_t>(frames, 1, kMostFrames) * kFrameData;
  return static_cast<size_t>(std::min<uint64_t>(most, unsent_));
}

// The first frame may exceed the window, so that a flow never stands still.
void HostCables::Flow::Pump() {
  EventQueue& events = cables_.events_;
  while (unsent_ > 0) {
    const size_t frame = NextFrame();
    if (under_way_ > 0 && static_cast<double>(under_way_ + frame) > window_) return;
    unsent_ -= frame;
    under_way_ += frame;
    cables_.sent_bytes_ += frame;
    const absl::Duration now = events.now();
    const bool waits = up_.free_at - now > kMarkedAfter;
    events.After(up_.Cross(frame, now) - now, [self = shared_from_this(), frame, waits] {
      EventQueue& queue = self->cables_.events_;
      const absl::Duration then = queue.now();
      const bool is_marked = waits || self->down_.free_at - then > kMarkedAfter;
      queue.After(self->down_.Cross(frame, then) - then,
                  [self, frame, is_marked] { self->Arrive(frame, is_marked); });
    });
  }
}

void HostCables::Flow::Arrive(size_t bytes, bool is_marked) {
  Adapt(bytes, is_marked);
  under_way_ -= bytes;
  // A copy, because the callee may close the flow.
  if (const OnArrival on_arrival = on_arrival_) on_arrival(bytes);
  Pump();
}

// Halves the window at most once in the time in which a window of frames crosses.
void HostCables::Flow::Adapt(size_t bytes, bool is_marked) {
  const absl::Duration now = cables_.events_.now();
  if (is_marked) {
    const double rate = SlowerRate();
    const absl::Duration crossing =
        rate > 0 ? absl::Seconds(window_ / rate) : absl::ZeroDuration();
    if (now - slowed_at_ < std::max(crossing, kMarkedAfter)) return;
    slowed_at_ = now;
    starts_slowly_ = false;
    window_ = std::max(window_ / 2, 2.0 * kFrameData);
    return;
  }
  // A flow that has nothing to send does not learn how much it could send.
  if (unsent_ == 0) return;
  const auto data = static_cast<double>(bytes);
  window_ += starts_slowly_ ? data : data * kFrameData / window_;
}

}  // namespace syncline
