// What a thread that encodes and decodes has of its own.
//
// Thread safety: none; one thread's.
#pragma once

#include <optional>
#include <vector>

#include "comm/base/trace_recorder.h"
#include "comm/codec/sparse/tensor_histogram.h"
#include "comm/compression/memory/gradient_memory.h"

namespace syncline {

struct CodecWorkspace {
  std::vector<float> tile = {};  // of gradients and weights that are not FP32
  GradientMemory::Workspace memory = {};
  std::optional<TensorHistogram> histogram = std::nullopt;
  TraceTrack* trace = nullptr;  // of this thread; null: none
  bool is_of_exchange =
      false;  // its thread is the exchange's own, which does nothing else
};

}  // namespace syncline
