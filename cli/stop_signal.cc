#include "cli/stop_signal.h"

#include <time.h>
#include <unistd.h>

#include "comm/base/env.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

// Period of the callback that updates the metrics. It is shorter than any scrape
// interval.
constexpr timespec kPeriod = {.tv_sec = 1, .tv_nsec = 0};
constexpr timespec kConditionPeriod = {.tv_sec = 0, .tv_nsec = 20'000'000};
constexpr timespec kNow = {};

// Held while End checks whether to send a signal, and sends it.
ABSL_CONST_INIT absl::Mutex sending(absl::kConstInit);
bool is_left_to_the_system ABSL_GUARDED_BY(sending) = false;

}  // namespace

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

// The kernel reports this process as the sender, so Next does not count the signal as one
// from outside.
void StopSignal::End() {
  absl::MutexLock lock(&sending);
  if (!is_left_to_the_system) kill(getpid(), SIGTERM);
}

void StopSignal::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    failure_.Update(status);
  }
  End();
}

bool StopSignal::IsPending() const {
  sigset_t pending;
  if (sigpending(&pending) != 0) return false;
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

int StopSignal::Next(const timespec& limit) {
  siginfo_t info = {};
  const int signal = sigtimedwait(&signals_, &info, &limit);
  if (signal < 0) return 0;
  if (info.si_pid != getpid()) ++from_outside_;
  return signal;
}

absl::Status StopSignal::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

absl::StatusOr<int> StopSignal::Wait(const std::function<void()>& periodically) {
  int signal = 0;
  while ((signal = Next(kPeriod)) == 0) periodically();
  SYNCLINE_RETURN_IF_ERROR(failure());
  return signal;
}

absl::StatusOr<int> StopSignal::WaitUntil(const std::function<bool()>& condition) {
  int signal = 0;
  while (!condition() && signal == 0) signal = Next(kConditionPeriod);
  SYNCLINE_RETURN_IF_ERROR(failure());
  return signal;
}

void StopSignal::WaitFor(const std::function<bool()>& condition, absl::Duration limit) {
  const SteadyClock clock;
  while (!condition() && clock.Now() < limit) {
    const int signal = Next(kConditionPeriod);
    if (signal == SIGINT || from_outside_ > 1 || !failure().ok()) return;
  }
}

void StopSignal::LeaveTheNextToTheSystem() {
  {
    absl::MutexLock lock(&sending);
    is_left_to_the_system = true;
    while (Next(kNow) != 0) {
    }
  }
  pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
}

}  // namespace syncline
