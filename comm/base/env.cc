#include "comm/base/env.h"

#include <chrono>

#include "comm/base/check.h"

namespace syncline {
namespace {

absl::Duration MonotonicTime() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

SteadyClock::SteadyClock() : start_(MonotonicTime()) {}

absl::Duration SteadyClock::Now() const { return MonotonicTime() - start_; }

absl::Duration FakeClock::Now() const {
  absl::MutexLock lock(&mutex_);
  return now_;
}

void FakeClock::Advance(absl::Duration by) {
  SYNCLINE_CHECK(by >= absl::ZeroDuration());
  absl::MutexLock lock(&mutex_);
  now_ += by;
}

}  // namespace syncline
