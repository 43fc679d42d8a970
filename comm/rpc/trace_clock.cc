#include "comm/rpc/trace_clock.h"

#include <chrono>

namespace syncline {

void WriteClock(const ControlLink& link, const TraceRecorder& recorder,
                v1::TracePart& part) {
  // The two clocks are read one after the other, and the thread may be interrupted in
  // between.
  const int64_t before = recorder.Now();
  const auto coordinator = link.CoordinatorTime();
  // The time of day is needed to compare with files of other profilers.
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  const int64_t after = recorder.Now();
  if (!coordinator) return;
  const int64_t now = before + (after - before) / 2;
  v1::TraceClock& clock = *part.mutable_clock();
  clock.set_offset_ns(absl::ToInt64Nanoseconds(coordinator->offset) - now);
  clock.set_error_ns(static_cast<uint64_t>(absl::ToInt64Nanoseconds(coordinator->error) +
                                           (after - before) / 2));
  clock.set_unix_ns(
      std::chrono::duration_cast<std::chrono::nanoseconds>(unix_time).count() - now);
}

}  // namespace syncline
