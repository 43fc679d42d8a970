#include "tests/group_sim/life.h"

#include <algorithm>
#include <utility>

#include "comm/base/check.h"

namespace syncline::group_sim {
namespace {

// The same as in group.cc.
constexpr absl::Duration kLook = absl::Milliseconds(5);

}  // namespace

Life::Life(const Options& options, EventQueue& events, InprocNetwork& network)
    : options_(options),
      plan_(*options.plan),
      events_(events),
      network_(network),
      clock_(events),
      random_(options.seed),
      wire_({.rank = options.rank,
             .ranks = plan_.ranks,
             .failure_timeout = options.failure_timeout,
             .fault = options.fault,
             .arrived = [this] { Arrived(); }},
            network, clock_),
      core_({.rank = options.rank,
             .ranks = plan_.ranks,
             .exact_order = plan_.exact_order,
             .hosts = plan_.hosts,
             .local = plan_.local},
            wire_, *this),
      happened_(plan_.incidents.size()) {}

Life::~Life() = default;

void Life::Begin() {
  calls_at_ = events_.now() + Drawn(plan_.most_compute);
  WakeAfter(absl::ZeroDuration());
}

absl::Duration Life::Drawn(absl::Duration most) {
  return most * (0.001 * Between(random_, 0, 1000));
}

bool Life::is_frozen() const { return events_.now() < frozen_until_; }

absl::Duration Life::FrozenFor() const {
  return is_frozen() ? frozen_until_ - frozen_at_ : absl::ZeroDuration();
}

size_t Life::UnderWay() const {
  return static_cast<size_t>(
      std::count_if(called_.begin(), called_.end(),
                    [](const auto& called) { return !called->pending->done; }));
}

bool Life::is_over() const {
  if (is_dead_ || has_left_) return true;
  if (is_frozen()) return false;
  const bool calls_no_more = next_ == plan_.operations.size() || is_absent_ ||
                             failed_at_ < absl::InfiniteDuration();
  return calls_no_more && UnderWay() == 0;
}

void Life::WakeAfter(absl::Duration delay) {
  wakes_at_ = events_.now() + delay;
  events_.After(delay, [this, wake = ++wake_, here = std::weak_ptr(is_here_)] {
    if (!here.expired() && wake == wake_) Turn();
  });
}

// Plans a turn soon if the process sleeps. If it is awake, it checks for messages itself.
void Life::Arrived() {
  if (options_.fault == Fault::kLate) {
    for (const auto& called : called_) {
      auto& output = called->memory.output;
      if (called->pending->done && !output.empty()) output.front() ^= std::byte{1};
    }
  }
  const absl::Duration soon = absl::Microseconds(Between(random_, 1, 60));
  if (!is_dead_ && wakes_at_ > events_.now() + soon) WakeAfter(soon);
}

void Life::Turn() {
  if (is_dead_ || has_left_) return;
  if (is_frozen()) return WakeAfter(frozen_until_ - events_.now());
  ++turns_;
  if (Suffers()) return;
  const absl::Duration now = events_.now();
  const bool has_failed = failed_at_ < absl::InfiniteDuration();
  if (has_failed && plan_.leaves_at_once) return Leave();
  if (now >= calls_at_ && !has_failed && !is_absent_) Call();
  bool moved = false;
  for (int i = Between(random_, 1, 4); i > 0; --i) moved = core_.Advance();
  core_.TendIfItIsTime(now);
  if (now - looked_ >= kLook) {
    looked_ = now;
    core_.Look(now);
  }
  absl::Duration nap = moved ? absl::Microseconds(Between(random_, 1, 100)) : kLook;
  if (calls_at_ > now) nap = std::min(nap, calls_at_ - now);
  WakeAfter(nap);
}

// After leaving a process sends nothing more. An absent process still sends heartbeats.
bool Life::Suffers() {
  for (size_t i = 0; i < plan_.incidents.size(); ++i) {
    const Incident& incident = plan_.incidents[i];
    const bool is_due = incident.rank == rank() && !happened_[i].has_value() &&
                        next_ >= incident.before && turns_ > incident.turns;
    // A process that is over has no more incidents.
    if (is_due && !is_over() && Suffer(i)) return true;
  }
  return false;
}

bool Life::Suffer(size_t index) {
  const Incident& incident = plan_.incidents[index];
  happened_[index] = events_.now();
  switch (incident.trouble) {
    case Trouble::kKill:
      is_dead_ = true;
      for (int peer = 0; peer < plan_.ranks; ++peer) {
        if (peer != rank()) network_.Kill(wire_.address(peer));
      }
      return true;
    case Trouble::kFreeze:
    case Trouble::kPause:
      frozen_at_ = events_.now();
      frozen_until_ = frozen_at_ + incident.length;
      happened_[index] = frozen_until_;
      WakeAfter(incident.length);
      return true;
    case Trouble::kLeave:
      Leave();
      return true;
    case Trouble::kAbsent:
      is_absent_ = true;
      return false;
    case Trouble::kOddCall:
      return false;  // Call handles it
    case Trouble::kCut:
      options_.cut(incident.other);
      return false;
  }
  return false;
}

void Life::Leave() {
  if (core_.HasActive()) core_.Fail(absl::CancelledError("a rank ended the group"));
  wire_.Leave();
  has_left_ = true;
}

void Life::End() {
  if (!is_dead_ && !has_left_) Leave();
}

void Life::Call() {
  while (next_ < plan_.operations.size() && !TakesPart(plan_.operations[next_], rank())) {
    ++next_;
  }
  if (next_ == plan_.operations.size()) {
    calls_at_ = absl::InfiniteDuration();
    return;
  }
  if (UnderWay() >= static_cast<size_t>(plan_.depth)) return;
  Operation operation = plan_.operations[next_];
  for (size_t i = 0; i < plan_.incidents.size(); ++i) {
    const Incident& incident = plan_.incidents[i];
    if (incident.trouble == Trouble::kOddCall && happened_[i].has_value()) {
      ++operation.count;
    }
  }
  auto called = std::make_unique<Called>();
  called->number = next_++;
  called->operation = std::move(operation);
  called->memory = MemoryOf(called->operation, rank(), plan_.ranks);
  called->input = called->memory.input;
  called->entered = events_.now();
  called->pending = std::make_shared<collective::PendingCall>();
  called->pending->call = CallOf(called->operation, rank(), called->memory);
  called->pending->deadline = events_.now() + plan_.timeout;
  SYNCLINE_CHECK(core_.CheckCall(called->pending->call).ok());
  core_.Add(called->pending);
  called_.push_back(std::move(called));
  turns_ = 0;
  calls_at_ = events_.now() + Drawn(plan_.most_compute);
}

void Life::OnFailed(const absl::Status&) {
  failed_at_ = std::min(failed_at_, events_.now());
}

void Life::OnDone(collective::PendingCall& pending, const absl::Status& status) {
  pending.status = status;
  pending.done = true;
  for (const auto& called : called_) {
    if (called->pending.get() != &pending) continue;
    called->ended = events_.now();
    called->output = called->memory.output;
  }
}

}  // namespace syncline::group_sim
