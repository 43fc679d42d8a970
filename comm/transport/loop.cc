#include "comm/transport/loop.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace syncline {
namespace {

// Number of sleeps without spinning after a preemption.
constexpr int kCautiousSleeps = 64;

int64_t PreemptionsOfThisThread() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

}  // namespace

class TransportLoop::Spinner {
 public:
  Spinner(const Clock& clock, absl::Duration spin) : clock_(clock), spin_(spin) {}

  // Returns true if something happened while spinning.
  bool Spin(Transport& transport, const std::atomic<bool>& interrupt) {
    if (!MaySpin()) return false;
    const absl::Duration until = clock_.Now() + spin_;
    do {
      if (transport.Progress() > 0 || interrupt.load(std::memory_order_relaxed))
        return true;
    } while (clock_.Now() < until);
    return false;
  }

 private:
  bool MaySpin() {
    if (spin_ <= absl::ZeroDuration()) return false;
    const int64_t preemptions = PreemptionsOfThisThread();
    if (preemptions != preemptions_) cautious_ = kCautiousSleeps;
    preemptions_ = preemptions;
    return cautious_ == 0 || --cautious_ == 0;
  }

  const Clock& clock_;
  const absl::Duration spin_;
  int64_t preemptions_ = PreemptionsOfThisThread();
  int cautious_ = 0;
};

absl::StatusOr<std::unique_ptr<TransportLoop>> TransportLoop::Start(
    Factory factory, TransportLoopOptions options) {
  auto loop = std::unique_ptr<TransportLoop>(new TransportLoop(options));
  absl::Status started;
  loop->thread_ = std::thread([&loop = *loop, &started, factory = std::move(factory)] {
    loop.Run(factory, &started);
  });
  {
    absl::MutexLock lock(&loop->mutex_);
    loop->mutex_.Await(absl::Condition(&loop->ready_));
  }
  if (!started.ok()) return started;
  return loop;
}

TransportLoop::~TransportLoop() { Stop(); }

bool TransportLoop::Post(Task task) {
  absl::MutexLock lock(&mutex_);
  if (!Add(std::move(task))) return false;
  WakeOnce();
  return true;
}

bool TransportLoop::PostQuietly(Task task) {
  absl::MutexLock lock(&mutex_);
  return Add(std::move(task));
}

void TransportLoop::Wake() {
  absl::MutexLock lock(&mutex_);
  if (!posted_.empty()) WakeOnce();
}

bool TransportLoop::Add(Task task) {
  if (transport_ == nullptr || stopping_) return false;
  posted_.push_back(std::move(task));
  has_posted_ = true;
  return true;
}

// One wake-up is enough, because the loop takes all posted tasks at once. Needs the lock,
// under which the transport is removed.
void TransportLoop::WakeOnce() {
  if (transport_ != nullptr && !std::exchange(is_woken_, true)) transport_->Wake();
}

bool TransportLoop::Every(absl::Duration period, Task task) {
  return Post([this, period, task = std::move(task)](Transport&) mutable {
    timers_.push_back({clock_.Now() + period, period, std::move(task)});
  });
}

void TransportLoop::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (transport_ != nullptr) transport_->Wake();
  }
  if (thread_.joinable()) thread_.join();
}

void TransportLoop::Run(const Factory& factory, absl::Status* started) {
  absl::StatusOr<std::unique_ptr<Transport>> transport = factory();
  {
    absl::MutexLock lock(&mutex_);
    if (transport.ok()) {
      transport_ = transport->get();
      address_ = transport_->address();
    } else {
      *started = transport.status();
    }
    ready_ = true;
  }
  if (!transport.ok()) return;
  Loop(**transport);
  {
    absl::MutexLock lock(&mutex_);
    transport_ = nullptr;
  }
  timers_.clear();
}

void TransportLoop::Loop(Transport& transport) {
  Spinner spinner(clock_, options_.spin);
  while (!stopping_) {
    bool busy = transport.Progress() > 0;
    busy |= RunPosted(transport);
    busy |= RunTimers(transport);
    if (busy) continue;
    if (spinner.Spin(transport, has_posted_)) continue;
    // A Post from here on wakes the transport, so that Wait returns at once.
    transport.Wait(UntilNextTimer());
  }
  RunPosted(transport);
}

bool TransportLoop::RunPosted(Transport& transport) {
  if (!has_posted_.load(std::memory_order_acquire)) return false;
  std::vector<Task> tasks;
  {
    absl::MutexLock lock(&mutex_);
    tasks.swap(posted_);
    has_posted_ = is_woken_ = false;
  }
  for (const Task& task : tasks) task(transport);
  return true;
}

bool TransportLoop::RunTimers(Transport& transport) {
  if (timers_.empty()) return false;
  bool ran = false;
  const absl::Duration now = clock_.Now();
  for (Timer& timer : timers_) {
    if (timer.due > now) continue;
    timer.task(transport);
    timer.due = std::max(timer.due + timer.period, now);
    ran = true;
  }
  return ran;
}

absl::Duration TransportLoop::UntilNextTimer() const {
  absl::Duration wait = absl::InfiniteDuration();
  const absl::Duration now = clock_.Now();
  for (const Timer& timer : timers_) wait = std::min(wait, timer.due - now);
  return std::max(wait, absl::ZeroDuration());
}

}  // namespace syncline
