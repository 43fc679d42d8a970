// Lets tests wait for other threads or processes.
//
//   ASSERT_TRUE(Eventually([&] { return stream.is_over(); }));
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/steady_condition.h"

namespace syncline {

// Returns whether `condition` holds within a minute, which a busy machine may need.
inline bool Eventually(absl::FunctionRef<bool()> condition) {
  absl::Mutex mutex;
  SteadyCondition never;
  const SteadyClock clock;
  const absl::Duration deadline = clock.Now() + absl::Minutes(1);
  absl::MutexLock lock(&mutex);
  while (!condition()) {
    if (clock.Now() > deadline) return false;
    never.WaitFor(mutex, absl::Milliseconds(5));
  }
  return true;
}

}  // namespace syncline
