#include "comm/base/steady_condition.h"

#include <algorithm>
#include <chrono>

namespace syncline {
namespace {

// Longer than any program runs, and far below the limit of the clocks.
constexpr absl::Duration kForever = absl::Hours(24 * 365);

// Gives absl::Mutex the method names that the standard library requires. Thread-safety
// analysis cannot follow a lock through a template.
class StandardLock {
 public:
  explicit StandardLock(absl::Mutex& mutex) : mutex_(mutex) {}
  // NOLINTBEGIN(readability-identifier-naming)
  void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }
  // NOLINTEND(readability-identifier-naming)

 private:
  absl::Mutex& mutex_;
};

}  // namespace

void SteadyCondition::WaitFor(absl::Mutex& mutex, absl::Duration timeout) {
  StandardLock lock(mutex);
  const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), kForever);
  condition_.wait_until(
      lock, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(bounded));
}

bool SteadyCondition::WaitUntil(absl::Mutex& mutex, const Clock& clock,
                                absl::Duration deadline) {
  const absl::Duration left = deadline - clock.Now();
  if (left <= absl::ZeroDuration()) return false;
  WaitFor(mutex, left);
  return true;
}

}  // namespace syncline
