// Scratch memory of one thread that encodes and decodes.
//
// Thread safety: none; each thread has its own.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/base/trace_recorder.h"
#include "comm/codec/sparse/tensor_histogram.h"
#include "comm/compression/memory/gradient_memory.h"
#include "comm/device/device_queue.h"

namespace syncline {

struct CodecWorkspace {
  // Returns this thread's queue of the GPU. Creates it on first use.
  DeviceQueue& QueueOf(Device& device) {
    for (const auto& queue : queues) {
      if (&queue->device() == &device) return *queue;
    }
    return *queues.emplace_back(
        std::make_unique<DeviceQueue>(device, DeviceQueue::Thread::kOurs));
  }

  // One tile in FP32, of gradients and weights that are on a GPU or not FP32.
  std::vector<float> tile = {};
  std::vector<std::unique_ptr<DeviceQueue>> queues = {};
  GradientMemory::Workspace memory = {};
  std::optional<TensorHistogram> histogram = std::nullopt;
  TraceTrack* trace = nullptr;  // this thread's track; null: it is not traced
  // Whether this is the exchange's own thread, which can do nothing else meanwhile.
  bool is_of_exchange = false;
};

}  // namespace syncline
