// Checks streams and memory of a device, as used by a program that does not link CUDA. It
// uses no test library, because it must also run on machines that have only CUDA. Exits
// with 77 (skipped) if there is no device.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "comm/codec/cuda/codecs.h"
#include "comm/codec/cuda/device_array.cuh"
#include "comm/codec/cuda/device_present.h"
#include "comm/codec/cuda/memory.h"

namespace syncline {
namespace {

constexpr int32_t kDevice = 0;
constexpr SynclineCudaCodec kCodec = {.id = 5};
// More than one tile, the last one not full.
constexpr uint64_t kElements = 150'000;
constexpr uint64_t kTiles = 3;

using AllocateFn = decltype(SynclineCudaAllocate);
using FreeFn = decltype(SynclineCudaFree);

struct Kind {
  AllocateFn* allocate;
  FreeFn* free;
};
constexpr Kind kOfDevice = {&SynclineCudaAllocate, &SynclineCudaFree};
constexpr Kind kPageLocked = {&SynclineCudaAllocateHost, &SynclineCudaFreeHost};

template <typename T>
class Array {
 public:
  Array(const Kind& kind, size_t size) : kind_(kind), bytes_(size * sizeof(T)) {
    Must(kind.allocate(kDevice, bytes_, &memory_), "allocate");
  }
  ~Array() { Must(kind_.free(kDevice, memory_), "free"); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() { return static_cast<T*>(memory_); }
  size_t bytes() const { return bytes_; }

 private:
  const Kind kind_;
  const size_t bytes_;
  void* memory_ = nullptr;
};

class Stream {
 public:
  Stream() { Must(SynclineCudaStreamCreate(kDevice, &stream_), "stream"); }
  ~Stream() { Must(SynclineCudaStreamDestroy(kDevice, stream_), "stream's end"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Copy(void* to, const void* from, size_t bytes) {
    Must(SynclineCudaCopy(kDevice, to, from, bytes, stream_), "copy");
  }
  void Clear(void* memory, size_t bytes) {
    Must(SynclineCudaClear(kDevice, memory, bytes, stream_), "clear");
  }
  void Wait() { Must(SynclineCudaStreamWait(kDevice, stream_), "wait"); }
  void* handle() { return SynclineCudaStreamHandle(stream_); }

 private:
  void* stream_ = nullptr;
};

// New memory must not show what others left there.
bool MemoryIsZeros() {
  constexpr size_t kBytes = size_t{16} << 20;
  Stream stream;
  Array<unsigned char> host(kPageLocked, kBytes);
  for (int round = 0; round < 4; ++round) {
    Array<unsigned char> device(kOfDevice, kBytes);
    std::memset(host.data(), 0xee, kBytes);
    stream.Copy(host.data(), device.data(), kBytes);
    stream.Wait();
    if (std::count(host.data(), host.data() + kBytes, 0) != kBytes) return false;
    std::memset(host.data(), 0xee, kBytes);
    stream.Copy(device.data(), host.data(), kBytes);
    stream.Wait();
  }
  return true;
}

bool CopiesAndClearsParts() {
  constexpr size_t kCount = 1000;
  Stream stream;
  std::vector<int> from(kCount, 5);
  std::vector<int> to(kCount, 1);
  Array<int> device(kOfDevice, kCount);
  stream.Copy(device.data() + 1, from.data(), (kCount - 1) * sizeof(int));
  stream.Clear(device.data() + 3, 2 * sizeof(int));
  stream.Copy(to.data(), device.data(), kCount * sizeof(int));
  stream.Wait();
  std::vector<int> expected = from;
  expected[0] = expected[3] = expected[4] = 0;
  return to == expected;
}

// Returns the encoding of a gradient with arrays of the given kind of memory.
std::vector<unsigned char> Encoded(const Kind& kind) {
  Stream stream;
  const size_t bytes = kTiles * SynclineCudaTileStride(&kCodec);
  std::vector<float> values(kElements);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  Array<float> gradient(kind, kElements);
  Array<unsigned char> out(kind, bytes);
  Array<uint32_t> tile_bytes(kind, kTiles);
  Array<unsigned char> workspace(kOfDevice,
                                 SynclineCudaWorkspaceBytes(&kCodec, kElements));
  stream.Copy(gradient.data(), values.data(), gradient.bytes());
  stream.Clear(out.data(), bytes);
  const SynclineCudaEncoding encoding = {.device = kDevice,
                                         .gradient = gradient.data(),
                                         .elements = kElements,
                                         .out = out.data(),
                                         .tile_bytes = tile_bytes.data(),
                                         .workspace = workspace.data()};
  Must(SynclineCudaEncode(&kCodec, &encoding, stream.handle()), "encode");
  std::vector<unsigned char> encoded(bytes);
  stream.Copy(encoded.data(), out.data(), bytes);
  stream.Wait();
  return encoded;
}

bool KernelsReachPageLockedMemory() {
  const std::vector<unsigned char> expected = Encoded(kOfDevice);
  const size_t zeros = std::count(expected.begin(), expected.end(), 0);
  return zeros < expected.size() / 2 && Encoded(kPageLocked) == expected;
}

bool ErrorsAreItsOwn() {
  void* memory = &memory;
  const int error = SynclineCudaAllocate(kDevice, size_t{1} << 60, &memory);
  if (error != cudaErrorMemoryAllocation || memory != nullptr) return false;
  if (cudaGetLastError() != cudaSuccess) return false;
  const cudaError_t others = cudaSetDevice(-5);
  Encoded(kOfDevice);
  return others != cudaSuccess && cudaGetLastError() == others;
}

struct Property {
  const char* name;
  bool (*holds)();
};
constexpr Property kProperties[] = {
    {"memory is zeros", MemoryIsZeros},
    {"parts are copied and cleared", CopiesAndClearsParts},
    {"kernels reach page-locked memory", KernelsReachPageLockedMemory},
    {"errors are its own", ErrorsAreItsOwn}};

}  // namespace
}  // namespace syncline

int main() {
  using namespace syncline;
  gpu::RequireDevice();
  bool good = true;
  for (const Property& property : kProperties) {
    const bool holds = property.holds();
    std::printf("%-34s %s\n", property.name, holds ? "ok" : "FAILED");
    good = holds && good;
  }
  std::printf("%s\n", good ? "ok" : "FAILED");
  return good ? 0 : 1;
}
