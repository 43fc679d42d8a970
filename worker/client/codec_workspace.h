// What a thread that encodes and decodes has of its own.
//
// Thread safety: none; one thread's.
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
  // For a GPU's memory; made where it is needed.
  DeviceQueue& QueueOf(Device& device) {
    for (const auto& queue : queues) {
      if (&queue->device() == &device) return *queue;
    }
    return *queues.emplace_back(
        std::make_unique<DeviceQueue>(device, DeviceQueue::Thread::kOurs));
  }

  std::vector<float> tile = {};  // of gradients and weights that are not the host's FP32
  std::vector<std::unique_ptr<DeviceQueue>> queues = {};
  GradientMemory::Workspace memory = {};
  std::optional<TensorHistogram> histogram = std::nullopt;
  TraceTrack* trace = nullptr;  // of this thread; null: none
  bool is_of_exchange =
      false;  // its thread is the exchange's own, which does nothing else
};

}  // namespace syncline
