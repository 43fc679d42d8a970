// Tests the fake module, opened as the product opens the real one.
#include "comm/codec/cuda/fake_module/fake_module.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "comm/base/cuda/probe.h"
#include "comm/base/dtype.h"
#include "comm/codec/cuda/cast.h"
#include "comm/codec/cuda/codecs.h"
#include "comm/codec/cuda/emulator/codecs_emulated.h"
#include "comm/codec/cuda/memory.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidHandle = 400;
constexpr int kIllegalAddress = 700;
constexpr int kLaunchFailure = 719;
constexpr SynclineCudaCodec kSign = {.id = 5};
constexpr SynclineCudaCodec kTopK = {.id = 16};

// The functions of a module.
struct Cuda {
  explicit Cuda(const std::string& path) : probe(ProbeCudaModule(path)) {}

  template <typename Function>
  Function* Named(const char* name) const {
    void* const found = dlsym(probe.module, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }

  CudaProbe probe;
#define SYNCLINE_NAMED(name) \
  decltype(&::name) name = Named<std::remove_pointer_t<decltype(&::name)>>(#name)
  SYNCLINE_NAMED(SynclineCudaTileStride);
  SYNCLINE_NAMED(SynclineCudaWorkspaceBytes);
  SYNCLINE_NAMED(SynclineCudaEncode);
  SYNCLINE_NAMED(SynclineCudaDecodeAdd);
  SYNCLINE_NAMED(SynclineCudaErrorString);
  SYNCLINE_NAMED(SynclineCudaBf16FromFloat);
  SYNCLINE_NAMED(SynclineCudaFloatFromBf16);
  SYNCLINE_NAMED(SynclineCudaUseDevice);
  SYNCLINE_NAMED(SynclineCudaStreamCreate);
  SYNCLINE_NAMED(SynclineCudaStreamDestroy);
  SYNCLINE_NAMED(SynclineCudaStreamWait);
  SYNCLINE_NAMED(SynclineCudaStreamHandle);
  SYNCLINE_NAMED(SynclineCudaAllocate);
  SYNCLINE_NAMED(SynclineCudaFree);
  SYNCLINE_NAMED(SynclineCudaAllocateHost);
  SYNCLINE_NAMED(SynclineCudaFreeHost);
  SYNCLINE_NAMED(SynclineCudaCopy);
  SYNCLINE_NAMED(SynclineCudaClear);
  SYNCLINE_NAMED(SynclineCudaFakeFailAfter);
  SYNCLINE_NAMED(SynclineCudaFakeAllocatedBytes);
#undef SYNCLINE_NAMED
};

const Cuda& TheModule() {
  static const Cuda& module = *new Cuda(SYNCLINE_TEST_FAKE_CUDA);
  return module;
}

// A stream of one device, and memory for it.
class Lane {
 public:
  explicit Lane(const Cuda& cuda, int32_t device = 1) : cuda_(cuda), device_(device) {
    EXPECT_EQ(cuda_.SynclineCudaStreamCreate(device_, &stream_), 0);
  }
  ~Lane() {
    for (void* const memory : memory_) {
      EXPECT_EQ(cuda_.SynclineCudaFree(device_, memory), 0);
    }
    for (void* const memory : locked_) {
      EXPECT_EQ(cuda_.SynclineCudaFreeHost(device_, memory), 0);
    }
    EXPECT_EQ(cuda_.SynclineCudaStreamDestroy(device_, stream_), 0);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  template <typename T>
  T* OnDevice(size_t count) {
    memory_.push_back(nullptr);
    EXPECT_EQ(cuda_.SynclineCudaAllocate(device_, count * sizeof(T), &memory_.back()), 0);
    return static_cast<T*>(memory_.back());
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* const memory = OnDevice<T>(values.size());
    EXPECT_EQ(Copy(memory, values.data(), values.size() * sizeof(T)), 0);
    return memory;
  }
  template <typename T>
  std::span<T> PageLocked(size_t count) {
    locked_.push_back(nullptr);
    EXPECT_EQ(cuda_.SynclineCudaAllocateHost(device_, count * sizeof(T), &locked_.back()),
              0);
    return {static_cast<T*>(locked_.back()), count};
  }
  int Copy(void* to, const void* from, size_t bytes) {
    return cuda_.SynclineCudaCopy(device_, to, from, bytes, stream_);
  }
  int Wait() { return cuda_.SynclineCudaStreamWait(device_, stream_); }
  template <typename T>
  std::vector<T> Read(const T* memory, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(Copy(values.data(), memory, count * sizeof(T)), 0);
    EXPECT_EQ(Wait(), 0);
    return values;
  }

  int32_t device() const { return device_; }
  void* stream() { return stream_; }
  void* handle() { return cuda_.SynclineCudaStreamHandle(stream_); }

 private:
  const Cuda& cuda_;
  const int32_t device_;
  void* stream_ = nullptr;
  std::vector<void*> memory_;
  std::vector<void*> locked_;
};

class FakeModule : public testing::Test {
 protected:
  ~FakeModule() override {
    cuda_.SynclineCudaFakeFailAfter(0);
    EXPECT_EQ(cuda_.SynclineCudaFakeAllocatedBytes(), 0u);
  }
  const Cuda& cuda_ = TheModule();
};

std::vector<float> Ramp(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = 0.25f * static_cast<float>(i % 37) - 4;
  return values;
}

TEST_F(FakeModule, LoadsAsTheRealOneDoes) {
  EXPECT_TRUE(cuda_.probe.loaded) << cuda_.probe.message;
  EXPECT_EQ(cuda_.probe.device_count, 2);
  EXPECT_EQ(cuda_.probe.message, "CUDA module loaded, 2 device(s)");
}

TEST_F(FakeModule, MemoryIsZerosAndAligned) {
  Lane lane(cuda_);
  int* const memory = lane.OnDevice<int>(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
  EXPECT_THAT(lane.Read(memory, 100), Each(Eq(0)));
  EXPECT_EQ(cuda_.SynclineCudaFakeAllocatedBytes(), 100 * sizeof(int));
  void* none = &lane;
  EXPECT_EQ(cuda_.SynclineCudaAllocate(0, 0, &none), 0);
  EXPECT_EQ(none, nullptr);
}

using FakeModuleDeathTest = FakeModule;
TEST_F(FakeModuleDeathTest, TheHostFaultsWhenItTouchesMemoryOfADevice) {
  Lane lane(cuda_);
  volatile int* const memory = lane.OnDevice<int>(2);
  EXPECT_DEATH(memory[1] = 7, "");
  EXPECT_DEATH(std::exit(memory[1]), "");
}

TEST_F(FakeModule, AddressesInsideAnArrayWork) {
  Lane lane(cuda_);
  int* const memory = lane.Upload<int>({1, 2, 3, 4});
  EXPECT_EQ(cuda_.SynclineCudaClear(1, memory + 1, 2 * sizeof(int), lane.stream()), 0);
  EXPECT_EQ(lane.Read(memory + 1, 3), (std::vector<int>{0, 0, 4}));
}

TEST_F(FakeModule, NothingIsDoneBeforeSomebodyWaits) {
  Lane lane(cuda_);
  int* const memory = lane.Upload<int>({7});
  const std::span<int> locked = lane.PageLocked<int>(1);
  EXPECT_EQ(lane.Copy(locked.data(), memory, sizeof(int)), 0);
  EXPECT_NE(locked[0], 7);
  EXPECT_EQ(lane.Wait(), 0);
  EXPECT_EQ(locked[0], 7);
  // CUDA cannot defer copies of ordinary host memory either.
  int other = 0;
  EXPECT_EQ(lane.Copy(&other, locked.data(), sizeof(int)), 0);
  EXPECT_EQ(other, 7);
}

// An encoding whose output is page-locked memory; all other arrays are on the device.
struct Encoded {
  std::vector<std::byte> bytes;
  std::vector<uint32_t> tile_bytes;
  std::vector<float> residual;
  std::vector<float> decoded;
};

Encoded OnModule(const Cuda& cuda, Lane& lane, const SynclineCudaCodec& codec,
                 const std::vector<float>& gradient) {
  const size_t n = gradient.size();
  const size_t stride = cuda.SynclineCudaTileStride(&codec);
  const std::span<std::byte> out = lane.PageLocked<std::byte>(stride);
  std::memset(out.data(), 0, stride);
  auto* const tile_bytes = lane.OnDevice<uint32_t>(1);
  const SynclineCudaEncoding encoding = {
      .device = lane.device(),
      .gradient = lane.Upload(gradient),
      .residual = lane.Upload(gradient),
      .elements = n,
      .now_on_device = lane.Upload(std::vector<SynclineCudaStep>(1)),
      .tile_units = lane.Upload(std::vector<SynclineCudaUnits>(1)),
      .out = out.data(),
      .tile_bytes = tile_bytes,
      .workspace = lane.OnDevice<std::byte>(cuda.SynclineCudaWorkspaceBytes(&codec, n))};
  EXPECT_EQ(cuda.SynclineCudaEncode(&codec, &encoding, lane.handle()), 0);
  const SynclineCudaDecoding decoding = {.device = lane.device(),
                                         .bytes = out.data(),
                                         .tile_bytes = tile_bytes,
                                         .stride = stride,
                                         .weight = 2,
                                         .accumulator = lane.Upload(gradient),
                                         .elements = n,
                                         .refused = lane.OnDevice<uint32_t>(1)};
  EXPECT_EQ(cuda.SynclineCudaDecodeAdd(&codec, &decoding, lane.handle()), 0);
  EXPECT_EQ(lane.Read(decoding.refused, 1)[0], 0u);
  return {.bytes = {out.begin(), out.end()},
          .tile_bytes = lane.Read(tile_bytes, 1),
          .residual = lane.Read(encoding.residual, n),
          .decoded = lane.Read<float>(decoding.accumulator, n)};
}

Encoded OnEmulator(const SynclineCudaCodec& codec, const std::vector<float>& gradient) {
  struct alignas(64) Aligned {
    std::byte bytes[64];
  };
  const size_t n = gradient.size();
  const size_t stride = emulated::TileStride(codec);
  std::vector<Aligned> out(stride / sizeof(Aligned));
  std::vector<Aligned> workspace(emulated::WorkspaceBytes(codec, n) / sizeof(Aligned) +
                                 1);
  Encoded encoded = {.bytes = std::vector<std::byte>(stride),
                     .tile_bytes = {0},
                     .residual = gradient,
                     .decoded = gradient};
  uint32_t refused = 1;
  emulated::EmulatedStream stream;
  EXPECT_EQ(emulated::Encode(codec,
                             {.gradient = gradient.data(),
                              .residual = encoded.residual.data(),
                              .elements = n,
                              .out = out.data(),
                              .tile_bytes = encoded.tile_bytes.data(),
                              .workspace = workspace.data()},
                             stream),
            0);
  EXPECT_EQ(emulated::DecodeAdd(codec,
                                {.bytes = out.data(),
                                 .tile_bytes = encoded.tile_bytes.data(),
                                 .stride = stride,
                                 .weight = 2,
                                 .accumulator = encoded.decoded.data(),
                                 .elements = n,
                                 .refused = &refused},
                                stream),
            0);
  std::memcpy(encoded.bytes.data(), out.data(), stride);
  return encoded;
}

void ExpectSame(const Encoded& one, const Encoded& other) {
  EXPECT_EQ(one.tile_bytes, other.tile_bytes);
  EXPECT_EQ(one.bytes, other.bytes);
  EXPECT_EQ(one.residual, other.residual);
  EXPECT_EQ(one.decoded, other.decoded);
}

TEST_F(FakeModule, CodecsGiveTheBytesOfTheEmulatedGpu) {
  const std::vector<float> gradient = Ramp(9000);
  for (const SynclineCudaCodec& codec : {kSign, kTopK}) {
    Lane lane(cuda_);
    ExpectSame(OnModule(cuda_, lane, codec, gradient), OnEmulator(codec, gradient));
  }
}

TEST_F(FakeModule, CastsGiveTheBitsOfTheCpu) {
  Lane lane(cuda_);
  const std::vector<float> values = {1, -3.14159f, 1e30f};
  auto* const narrow = lane.OnDevice<uint16_t>(3);
  auto* const wide = lane.OnDevice<float>(3);
  EXPECT_EQ(
      cuda_.SynclineCudaBf16FromFloat(1, lane.Upload(values), narrow, 3, lane.handle()),
      0);
  EXPECT_EQ(cuda_.SynclineCudaFloatFromBf16(1, narrow, wide, 3, lane.handle()), 0);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(lane.Read(narrow, 3)[i], Bf16FromFloat(values[i]));
    EXPECT_EQ(lane.Read(wide, 3)[i], FloatFromBf16(Bf16FromFloat(values[i])));
  }
}

// A real device behaves the same way with memory that is not page-locked.
TEST_F(FakeModule, KernelsDoNotReachOtherMemoryOfTheHost) {
  Lane lane(cuda_);
  std::vector<uint16_t> ordinary(3);
  auto* const values = lane.OnDevice<float>(3);
  EXPECT_EQ(cuda_.SynclineCudaBf16FromFloat(1, values, ordinary.data(), 3, lane.handle()),
            0);
  EXPECT_EQ(lane.Wait(), kIllegalAddress);
  EXPECT_EQ(lane.Wait(), kIllegalAddress);
}

TEST_F(FakeModule, RefusesWhatTheRealOneRefuses) {
  Lane lane(cuda_);
  int* const memory = lane.OnDevice<int>(1);
  int host = 0;
  void* made = &lane;
  EXPECT_EQ(cuda_.SynclineCudaStreamCreate(2, &made), kInvalidDevice);
  EXPECT_EQ(cuda_.SynclineCudaAllocate(2, 1, &made), kInvalidDevice);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(cuda_.SynclineCudaAllocate(0, size_t{1} << 40, &made), kOutOfMemory);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(cuda_.SynclineCudaStreamWait(0, lane.stream()), kInvalidHandle);
  EXPECT_EQ(cuda_.SynclineCudaCopy(1, memory, &host, 1, lane.handle()), kInvalidHandle);
  EXPECT_EQ(cuda_.SynclineCudaCopy(1, memory, nullptr, 1, lane.stream()), kInvalidValue);
  EXPECT_EQ(cuda_.SynclineCudaFloatFromBf16(1, nullptr, nullptr, 1, lane.handle()),
            kInvalidValue);
  const SynclineCudaEncoding none = {.elements = 1};
  EXPECT_EQ(cuda_.SynclineCudaEncode(&kSign, &none, lane.handle()), kInvalidValue);
  // The current device is 0.
  EXPECT_EQ(cuda_.SynclineCudaClear(-1, memory, 1, lane.stream()), kInvalidHandle);
  EXPECT_EQ(cuda_.SynclineCudaFree(0, memory), kInvalidValue);
  EXPECT_EQ(cuda_.SynclineCudaFreeHost(1, memory), kInvalidValue);
  EXPECT_EQ(cuda_.SynclineCudaFree(1, &host), kInvalidValue);
  EXPECT_THAT(cuda_.SynclineCudaErrorString(kOutOfMemory), HasSubstr("memory"));
}

TEST_F(FakeModule, FailsFromTheCallOnThatWasAskedFor) {
  Lane lane(cuda_);
  int* const memory = lane.OnDevice<int>(1);
  const std::span<int> locked = lane.PageLocked<int>(1);
  locked[0] = 5;
  cuda_.SynclineCudaFakeFailAfter(3);
  EXPECT_EQ(lane.Copy(memory, locked.data(), sizeof(int)), 0);
  EXPECT_EQ(lane.Wait(), 0);
  EXPECT_EQ(lane.Copy(memory, locked.data(), sizeof(int)), kLaunchFailure);
  EXPECT_EQ(lane.Wait(), kLaunchFailure);
  void* made = &lane;
  EXPECT_EQ(cuda_.SynclineCudaAllocate(1, 1, &made), kLaunchFailure);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(cuda_.SynclineCudaStreamCreate(0, &made), kLaunchFailure);
  cuda_.SynclineCudaFakeFailAfter(0);
  EXPECT_EQ(lane.Read(memory, 1)[0], 5);
}

TEST_F(FakeModule, EveryCallThatEnqueuesIsCounted) {
  Lane lane(cuda_);
  int* const memory = lane.OnDevice<int>(64);
  auto* const floats = lane.OnDevice<float>(64);
  auto* const halves = lane.OnDevice<uint16_t>(64);
  const SynclineCudaEncoding encoding = {.device = 1,
                                         .gradient = floats,
                                         .elements = 1,
                                         .out = memory,
                                         .tile_bytes = lane.OnDevice<uint32_t>(1),
                                         .workspace = lane.OnDevice<std::byte>(4096)};
  const SynclineCudaDecoding decoding = {.device = 1,
                                         .bytes = memory,
                                         .tile_bytes = encoding.tile_bytes,
                                         .accumulator = floats,
                                         .elements = 1,
                                         .refused = encoding.tile_bytes};
  const std::vector<std::function<int()>> calls = {
      [&] { return lane.Wait(); },
      [&] { return lane.Copy(memory, floats, 4); },
      [&] { return cuda_.SynclineCudaClear(1, memory, 4, lane.stream()); },
      [&] { return cuda_.SynclineCudaEncode(&kSign, &encoding, lane.handle()); },
      [&] { return cuda_.SynclineCudaDecodeAdd(&kSign, &decoding, lane.handle()); },
      [&] {
        return cuda_.SynclineCudaBf16FromFloat(1, floats, halves, 1, lane.handle());
      },
      [&] {
        return cuda_.SynclineCudaFloatFromBf16(1, halves, floats, 1, lane.handle());
      }};
  for (size_t i = 0; i < calls.size(); ++i) {
    cuda_.SynclineCudaFakeFailAfter(2);
    EXPECT_EQ(calls[i](), 0) << i;
    EXPECT_EQ(calls[i](), kLaunchFailure) << i;
  }
}

TEST_F(FakeModule, FailsAsTheEnvironmentSays) {
  // Another copy of the library has its own state.
  const std::string path =
      testing::TempDir() + "/fake_cuda_" + std::to_string(getpid()) + ".so";
  std::filesystem::copy_file(SYNCLINE_TEST_FAKE_CUDA, path,
                             std::filesystem::copy_options::overwrite_existing);
  setenv("SYNCLINE_FAKE_CUDA_FAILS", "2", 1);
  const Cuda other(path);
  Lane lane(other);
  EXPECT_EQ(lane.Wait(), 0);
  EXPECT_EQ(lane.Wait(), kLaunchFailure);
  unsetenv("SYNCLINE_FAKE_CUDA_FAILS");
  std::filesystem::remove(path);
}

TEST_F(FakeModule, ThreadsUseItAtOnceEachWithItsStream) {
  const std::vector<float> gradient = Ramp(5000);
  const Encoded expected[] = {OnEmulator(kSign, gradient), OnEmulator(kTopK, gradient)};
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        Lane other(cuda_, i % 2);
        const std::span<int> locked = other.PageLocked<int>(1);
        locked[0] = round;
        EXPECT_EQ(other.Copy(other.OnDevice<int>(1), locked.data(), sizeof(int)), 0);
        EXPECT_EQ(other.Wait(), 0);
      }
      Lane lane(cuda_, i % 2);
      ExpectSame(OnModule(cuda_, lane, i < 2 ? kSign : kTopK, gradient),
                 expected[i < 2 ? 0 : 1]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace syncline
