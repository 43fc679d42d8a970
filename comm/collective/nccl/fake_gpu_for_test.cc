#include "comm/collective/nccl/fake_gpu_for_test.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace syncline::fake_gpu {
namespace {

constexpr int kDevices = 8;

struct Flag {
  std::atomic<bool> is_set = false;
};

class ThreadStream final : public FakeStream {
 public:
  ThreadStream() : thread_([this] { Run(); }) { thread_.detach(); }
  void Put(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

struct FakeEvent {
  std::mutex mutex;
  std::shared_ptr<Flag> last;
};

std::shared_ptr<Flag> LastOf(void* event) {
  auto& given = *static_cast<FakeEvent*>(event);
  const std::lock_guard lock(given.mutex);
  return given.last;
}

thread_local void* current_context = nullptr;
std::atomic<bool> is_held = false;

int FirstDevice() {
  const char* const first = std::getenv("FAKE_GPU_FIRST");
  return first != nullptr ? std::atoi(first) : 0;
}

}  // namespace

void Rest() { usleep(20); }

FakeStream& StreamOf(void* stream) {
  static FakeStream* const by_default = new ThreadStream;
  return stream != nullptr ? *static_cast<FakeStream*>(stream) : *by_default;
}

int CurrentDevice() {
  return FirstDevice() + static_cast<int>(reinterpret_cast<intptr_t>(current_context)) -
         1;
}

extern "C" {

// For tests: while the stream is held, it does nothing of what it is told after
// FakeGpuHold.
void FakeGpuHold(void* stream) {
  is_held = true;
  StreamOf(stream).Put([] {
    while (is_held) Rest();
  });
}
void FakeGpuRelease() { is_held = false; }

int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < kDevices ? 0 : 101;
}
int cuDeviceGetUuid(std::array<std::byte, 16>* uuid, int device) {
  uuid->fill(std::byte{7});
  uuid->front() = static_cast<std::byte>(FirstDevice() + device);
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(device) + 1);
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxGetCurrent(void** context) {
  *context = current_context;
  return 0;
}
int cuCtxSetCurrent(void* context) {
  current_context = context;
  return 0;
}
int cuStreamCreate(void** stream, unsigned) {
  if (current_context == nullptr) return 201;
  *stream = static_cast<FakeStream*>(new ThreadStream);
  return 0;
}
int cuStreamDestroy_v2(void*) { return 0; }
int cuEventCreate(void** event, unsigned) {
  if (current_context == nullptr) return 201;
  *event = new FakeEvent;
  return 0;
}
int cuEventDestroy_v2(void* event) {
  delete static_cast<FakeEvent*>(event);
  return 0;
}
int cuEventRecord(void* event, void* stream) {
  auto& given = *static_cast<FakeEvent*>(event);
  const auto flag = std::make_shared<Flag>();
  {
    const std::lock_guard lock(given.mutex);
    given.last = flag;
  }
  StreamOf(stream).Put([flag] { flag->is_set = true; });
  return 0;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  StreamOf(stream).Put([flag = LastOf(event)] {
    while (flag != nullptr && !flag->is_set) Rest();
  });
  return 0;
}
int cuEventQuery(void* event) {
  const auto flag = LastOf(event);
  return flag == nullptr || flag->is_set ? 0 : 600;
}
int cuMemAlloc_v2(void** memory, size_t bytes) {
  *memory = std::calloc(1, bytes);
  return 0;
}
int cuMemFree_v2(void* memory) {
  std::free(memory);
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "a stand-in's error";
  return 0;
}

}  // extern "C"

}  // namespace syncline::fake_gpu
