#include "comm/base/steady_condition.h"

#include <thread>

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(SteadyConditionTest, WaitsUntilSomebodySignals) {
  absl::Mutex mutex;
  SteadyCondition changed;
  bool done = false;
  std::thread other([&] {
    absl::MutexLock lock(&mutex);
    done = true;
    changed.SignalAll();
  });
  {
    absl::MutexLock lock(&mutex);
    while (!done) changed.Wait(mutex);
  }
  other.join();
}

TEST(SteadyConditionTest, EndsWithItsTimeout) {
  absl::Mutex mutex;
  SteadyCondition changed;
  const SteadyClock clock;
  const absl::Duration until = clock.Now() + absl::Milliseconds(5);
  absl::MutexLock lock(&mutex);
  while (changed.WaitUntil(mutex, clock, until)) {
  }
  changed.WaitFor(mutex, -absl::InfiniteDuration());  // does not wait
  EXPECT_GE(clock.Now(), until);
}

}  // namespace
}  // namespace syncline
