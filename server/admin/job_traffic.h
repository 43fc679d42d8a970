// Counts the traffic of a job on the engines, with relaxed atomic additions and no lock.
// Metrics reads the counts at each scrape (metrics.h). So the series of a job may end
// while an engine still holds this object.
//
//   const std::shared_ptr<JobTraffic> traffic = metrics.TrafficOf(7);
//   traffic->CountPush(PushResult::kCounted, payload.size());
//
// Thread safety: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/transport/message.h"

namespace syncline {

enum class PushResult : uint8_t {
  kCounted,   // a contribution that counts
  kRepeated,  // counted before: acknowledged again, not applied again
  kRefused,   // not taken; CountRefused has the reason
};

class JobTraffic {
 public:
  // All codes except RefuseCode::kNone, which is 0.
  static constexpr size_t kReasons = static_cast<size_t>(RefuseCode::kTooLate);

  struct Sums {
    std::array<uint64_t, 3> pushes = {};  // by PushResult
    uint64_t pushed_bytes = 0;
    uint64_t published = 0;
    uint64_t published_bytes = 0;
    std::array<uint64_t, kReasons> refused = {};  // by RefuseCode - 1
  };

  // `payload_bytes`: as received.
  void CountPush(PushResult result, size_t payload_bytes) {
    Add(pushes_[static_cast<size_t>(result)], 1);
    Add(pushed_bytes_, payload_bytes);
  }
  void CountRefused(RefuseCode reason) {
    const size_t index = static_cast<size_t>(reason);
    if (index >= 1 && index <= kReasons) Add(refused_[index - 1], 1);
  }
  void CountPublished(size_t payload_bytes) {
    Add(published_, 1);
    Add(published_bytes_, payload_bytes);
  }

  Sums Read() const {
    Sums sums = {.pushed_bytes = Of(pushed_bytes_),
                 .published = Of(published_),
                 .published_bytes = Of(published_bytes_)};
    for (size_t i = 0; i < pushes_.size(); ++i) sums.pushes[i] = Of(pushes_[i]);
    for (size_t i = 0; i < kReasons; ++i) sums.refused[i] = Of(refused_[i]);
    return sums;
  }

 private:
  using Count = std::atomic<uint64_t>;

  static void Add(Count& count, uint64_t more) {
    count.fetch_add(more, std::memory_order_relaxed);
  }
  static uint64_t Of(const Count& count) { return count.load(std::memory_order_relaxed); }

  std::array<Count, 3> pushes_ = {};
  Count pushed_bytes_ = 0;
  Count published_ = 0;
  Count published_bytes_ = 0;
  std::array<Count, kReasons> refused_ = {};
};

}  // namespace syncline
