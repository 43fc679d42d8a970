// Implements codecs.h and cast.h of the fake module: the kernels' source on the emulated
// GPU.
#include <atomic>
#include <thread>
#include <utility>

#include "comm/base/dtype.h"
#include "comm/base/sanitizers.h"
#include "comm/codec/cuda/cast.h"
#include "comm/codec/cuda/codecs.h"
#include "comm/codec/cuda/dispatch.cuh"
#include "comm/codec/cuda/emulator/codecs_emulated.h"
#include "comm/codec/cuda/fake_module/device.h"

namespace fake = syncline::fake_module;
namespace emulated = syncline::emulated;

namespace {

#ifdef SYNCLINE_TSAN
// Limits the number of grids at once, because ThreadSanitizer supports at most 8,128
// threads and a grid has 2,048. The order is relaxed, so that ThreadSanitizer sees no
// order between grids.
class Turn {
 public:
  Turn() {
    while (running_.fetch_add(1, std::memory_order_relaxed) >= 3) {
      running_.fetch_sub(1, std::memory_order_relaxed);
      std::this_thread::yield();
    }
  }
  ~Turn() { running_.fetch_sub(1, std::memory_order_relaxed); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static inline std::atomic<int> running_ = 0;
};
#else
struct Turn {};
#endif

// The pointers of a kernel's arguments, converted to where the bytes are.
class Reaching {
 public:
  template <typename T>
  void operator()(T*& pointer) {
    is_legal_ = is_legal_ && fake::KernelsReach(pointer);
    pointer = fake::OnHost(pointer);
  }
  bool is_legal() const { return is_legal_; }

 private:
  bool is_legal_ = true;
};

struct Launch {
  int32_t device = -1;
  void* stream = nullptr;
  bool is_legal = true;
};

int Enqueue(const Launch& launch, fake::WorkQueue::Work kernel) {
  if (!fake::Exists(launch.device)) return fake::kInvalidDevice;
  const auto queue = fake::QueueOfHandle(launch.device, launch.stream);
  if (queue == nullptr) return fake::kInvalidHandle;
  const int error = fake::Count();
  if (error != fake::kNoError) return error;
  if (!launch.is_legal) kernel = [] { return fake::kIllegalAddress; };
  queue->Enqueue(std::move(kernel));
  return fake::kNoError;
}

template <typename From, typename To>
int Cast(Launch launch, const From* values, To* out, size_t n, To (*convert)(From)) {
  if (n == 0) return fake::kNoError;
  if (values == nullptr || out == nullptr) return fake::kInvalidValue;
  Reaching reach;
  reach(values);
  reach(out);
  launch.is_legal = reach.is_legal();
  return Enqueue(launch, [values, out, n, convert] {
    for (size_t i = 0; i < n; ++i) out[i] = convert(values[i]);
    return fake::kNoError;
  });
}

}  // namespace

size_t SynclineCudaTileStride(const SynclineCudaCodec* codec) {
  return codec == nullptr ? 0 : emulated::TileStride(*codec);
}

size_t SynclineCudaWorkspaceBytes(const SynclineCudaCodec* codec, uint64_t elements) {
  return codec == nullptr ? 0 : emulated::WorkspaceBytes(*codec, elements);
}

int SynclineCudaEncode(const SynclineCudaCodec* codec,
                       const SynclineCudaEncoding* encoding, void* stream) {
  if (codec == nullptr || encoding == nullptr) return fake::kInvalidValue;
  if (!emulated::IsValid(*codec, *encoding)) return fake::kInvalidValue;
  if (encoding->elements == 0) return fake::kNoError;
  SynclineCudaEncoding given = *encoding;
  Reaching reach;
  reach(given.gradient);
  reach(given.residual);
  reach(given.now_on_device);
  reach(given.tile_units);
  reach(given.out);
  reach(given.tile_bytes);
  reach(given.workspace);
  const int32_t device = std::exchange(given.device, -1);
  return Enqueue({.device = device, .stream = stream, .is_legal = reach.is_legal()},
                 [codec = *codec, given] {
                   [[maybe_unused]] const Turn turn;
                   emulated::EmulatedStream order;
                   return emulated::Encode(codec, given, order);
                 });
}

int SynclineCudaDecodeAdd(const SynclineCudaCodec* codec,
                          const SynclineCudaDecoding* decoding, void* stream) {
  if (codec == nullptr || decoding == nullptr) return fake::kInvalidValue;
  if (!emulated::IsValid(*codec, *decoding)) return fake::kInvalidValue;
  if (decoding->elements == 0) return fake::kNoError;
  SynclineCudaDecoding given = *decoding;
  Reaching reach;
  reach(given.bytes);
  reach(given.tile_bytes);
  reach(given.accumulator);
  reach(given.refused);
  const int32_t device = std::exchange(given.device, -1);
  return Enqueue({.device = device, .stream = stream, .is_legal = reach.is_legal()},
                 [codec = *codec, given] {
                   [[maybe_unused]] const Turn turn;
                   emulated::EmulatedStream order;
                   return emulated::DecodeAdd(codec, given, order);
                 });
}

int SynclineCudaBf16FromFloat(int32_t device, const float* values, uint16_t* out,
                              size_t n, void* stream) {
  return Cast({.device = device, .stream = stream}, values, out, n,
              &syncline::Bf16FromFloat);
}

int SynclineCudaFloatFromBf16(int32_t device, const uint16_t* values, float* out,
                              size_t n, void* stream) {
  return Cast({.device = device, .stream = stream}, values, out, n,
              &syncline::FloatFromBf16);
}

const char* SynclineCudaErrorString(int error) {
  switch (error) {
    case fake::kNoError:
      return "no error";
    case fake::kInvalidValue:
      return "invalid argument";
    case fake::kOutOfMemory:
      return "out of memory";
    case fake::kInvalidDevice:
      return "invalid device ordinal";
    case fake::kInvalidHandle:
      return "invalid resource handle";
    case fake::kIllegalAddress:
      return "an illegal memory access was encountered";
    case fake::kLaunchFailure:
      return "unspecified launch failure";
    default:
      return "unrecognized error code";
  }
}
