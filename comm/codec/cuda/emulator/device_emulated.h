// The operations of device.cuh on the emulated GPU: the same names with the same meaning,
// for g++.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/base/check.h"
#include "comm/base/dtype.h"
#include "comm/codec/cuda/emulator/emulator.h"

#define SYNCLINE_GPU emulated
#define SYNCLINE_DEVICE inline
#define SYNCLINE_HOST_DEVICE inline
#define SYNCLINE_UNROLL

namespace syncline::emulated {

constexpr uint32_t kThreads = 256;

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;
constexpr int kCaptureUnsupported = 900;

inline uint32_t WarpBallot(bool vote) {
  const std::span<const uint32_t> votes = WarpExchange(vote ? 1 : 0);
  uint32_t ballot = 0;
  for (uint32_t lane = 0; lane < kWarp; ++lane) ballot |= votes[lane] << lane;
  return ballot;
}
inline uint32_t WarpMax(uint32_t value) { return std::ranges::max(WarpExchange(value)); }
inline uint32_t WarpShuffleXor(uint32_t value, uint32_t mask) {
  return WarpExchange(value)[(ThreadIndex() % kWarp) ^ mask];
}
inline uint32_t WarpShuffleUp(uint32_t value, uint32_t delta) {
  const uint32_t lane = ThreadIndex() % kWarp;
  return WarpExchange(value)[lane < delta ? lane : lane - delta];
}
inline float WarpShuffleDown(float value, uint32_t delta) {
  const uint32_t lane = ThreadIndex() % kWarp;
  const std::span<const uint32_t> bits = WarpExchange(std::bit_cast<uint32_t>(value));
  return std::bit_cast<float>(bits[lane + delta < kWarp ? lane + delta : lane]);
}

// All emulated threads are fibers of one thread. It switches fibers only inside
// BlockBarrier, Warp... and Pause, so plain accesses are atomic and ordered.
inline uint32_t AtomicAdd(uint32_t* to, uint32_t value) {
  const uint32_t before = *to;
  *to += value;
  return before;
}
template <typename T>
T LoadFresh(const T* from) {
  return *from;
}
template <typename T>
void StoreFresh(T* to, T value) {
  *to = value;
}
inline void Fence() {}
inline void Trap() { SYNCLINE_CHECK(false); }

inline float Add(float a, float b) { return a + b; }
inline float Subtract(float a, float b) { return a - b; }
inline float Multiply(float a, float b) { return a * b; }
inline float Divide(float a, float b) { return a / b; }
inline uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
inline float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float WidenF16(uint16_t bits) { return FloatFromF16(bits); }
inline uint32_t PopCount(uint32_t bits) {
  return static_cast<uint32_t>(std::popcount(bits));
}

// `stream` points to an EmulatedStream.
template <typename Kernel>
int Launch(uint32_t blocks, const typename Kernel::Arguments& arguments, void* stream) {
  RunGrid({.blocks = blocks,
           .threads = kThreads,
           .shared_bytes = sizeof(typename Kernel::Shared)},
          *static_cast<EmulatedStream*>(stream), [&arguments](void* shared) {
            Kernel::Run(*static_cast<typename Kernel::Shared*>(shared), arguments);
          });
  return kSuccess;
}

inline int ClearAsync(void* memory, size_t bytes, void* /*stream*/) {
  std::memset(memory, 0, bytes);
  return kSuccess;
}

inline int MustNotCapture(void* stream) {
  return static_cast<const EmulatedStream*>(stream)->captures ? kCaptureUnsupported
                                                              : kSuccess;
}

// There is only one device.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device) : is_there_(device <= 0) {}
  int error() const { return is_there_ ? kSuccess : kInvalidDevice; }

 private:
  const bool is_there_;
};

}  // namespace syncline::emulated
