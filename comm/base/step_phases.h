// Where the time of a job's steps goes, as workers and servers measure it. Sums since a
// worker joined, or since a server has had the job: whoever shows them takes differences.
//
// Of a worker the phases take turns, so that together they are all of its time. What goes
// on behind the program's back, while it computes, is compute: it costs nothing.
//   compute   the program does something else than wait for Syncline
// and while it waits:
//   encode    gradients are compressed or copied
//   push      some of what was pushed is not acknowledged by the servers
//   others    the servers have all of it, and no new weights came yet: other workers, and the
//             servers' first step
//   publish   some of the new weights are here, the rest is awaited
//   decode    new weights are put in their places
//
// Of a server they are measured side by side, for each step:
//   hold      from the first contribution until the last one
//   decide    from the last contribution until the coordinator's decision, where one is needed
//   step      its slowest engine is at work: sums, optimizer, encoding
//   publish   from the last block's step until the last of its views was delivered
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace syncline {

enum class WorkerPhase : uint8_t { kCompute, kEncode, kPush, kOthers, kPublish, kDecode };
inline constexpr std::array<const char*, 6> kWorkerPhaseNames = {
    "compute", "encode", "push", "others", "publish", "decode"};

enum class ServerPhase : uint8_t { kHold, kDecide, kStep, kPublish };
inline constexpr std::array<const char*, 4> kServerPhaseNames = {"hold", "decide", "step",
                                                                 "publish"};

template <size_t kPhases>
struct PhaseSums {
  uint64_t steps = 0;
  std::array<double, kPhases> seconds = {};

  template <typename Phase>
  double& operator[](Phase phase) {
    return seconds[static_cast<size_t>(phase)];
  }
  template <typename Phase>
  double operator[](Phase phase) const {
    return seconds[static_cast<size_t>(phase)];
  }
};
using WorkerPhases = PhaseSums<kWorkerPhaseNames.size()>;
using ServerPhases = PhaseSums<kServerPhaseNames.size()>;

}  // namespace syncline
