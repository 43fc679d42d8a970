// How the time of a job's steps divides into phases, as workers and servers measure it.
// Values are sums since a worker joined, or since a server has had the job; take
// differences of two readings.
//
// A worker's phases do not overlap and add up to all its time. Work in the background
// while the program computes counts as compute, since it costs no time.
//   compute   the program does something other than wait for Syncline
// The other phases are times in which the program waits:
//   encode    gradients are compressed or copied
//   push      some of what was pushed is not acknowledged by the servers
//   others    the servers have all of it, and no new weights came yet: other workers, and the
//             servers' first step
//   publish   some of the new weights are here, the rest is awaited
//   decode    new weights are put in their places
//
// A server's phases are measured for each step and may overlap:
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
