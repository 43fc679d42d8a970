// A stand-in for both libcuda.so.1 and libnccl.so.2. Its devices use host memory, its
// streams are threads, and its communicators connect threads and processes of this host
// through a file in /dev/shm. It computes with its own loops.
//
// $FAKE_NCCL_VERSION is the version that it reports. $FAKE_GPU_FIRST is the number of
// this process's device 0; with it, tests decide whether two processes have the same GPU.
// $FAKE_NCCL "RANK:WHAT:N" affects that rank's N-th operation (from 1): it hangs
// ("hang"), ends late ("slow"), or fails asynchronously with ncclResult_t 3 ("error") or
// 2 ("system"). With "RANK:init:0" its communicator fails.
#pragma once

#include <functional>

namespace syncline::fake_gpu {

// Runs tasks one after another, in its own thread. It is never freed: the thread sleeps
// until the process ends.
class FakeStream {
 public:
  virtual ~FakeStream() = default;
  virtual void Put(std::function<void()> task) = 0;
};

// Null: the default stream.
FakeStream& StreamOf(void* stream);

// Returns the number of the thread's current device among those of all processes.
int CurrentDevice();

void Rest();

}  // namespace syncline::fake_gpu
