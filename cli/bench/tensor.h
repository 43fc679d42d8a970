// One tensor with its optimizer state in this process's memory, stepped strip by strip as
// a shard does it, but for the sum of contributions: its gradient is there already.
//
// Thread safety: none; each benchmark thread has its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/codec.h"
#include "server/optimizer/optimizer.h"
#include "server/optimizer/state_storage.h"
#include "server/optimizer/tensor_shape.h"

namespace syncline {

class BenchTensor {
 public:
  // A matrix with rows of 1,024 if `elements` is a multiple of that. `optimizer` outlives
  // the tensor. Weights and gradient are left to the caller; state is zero.
  BenchTensor(const Optimizer& optimizer, StateType state, uint64_t elements);

  std::span<float> gradient() { return Floats(gradient_); }
  std::span<float> master() { return Floats(master_); }

  // One update with all rounds that the optimizer asks for. The new weights are also
  // encoded by `out`, unless it is null.
  void Step(double learning_rate, const Codec* out);

  // What one update has to move for each element, its rounds of figures not counted:
  // the gradient read, weights and state read and written.
  double bytes_per_element() const;

 private:
  struct Slot {
    StoredSlot stored = {};  // in `memory`
    Buffer memory = {};
    Buffer scratch = {};  // one tile of FP32, unless it is stored so
  };

  static std::span<float> Floats(const Buffer& buffer);
  Strip Open(uint64_t first, uint64_t count);
  void Close(const Strip& strip);
  void Reduce(const StepScalars& scalars, const TensorData& data);

  const Optimizer& optimizer_;
  const TensorShape shape_;
  Buffer gradient_;
  Buffer master_;
  std::vector<Slot> slots_ = {};
  std::vector<float*> pointers_ = {};  // of the open strip's state
  std::vector<float> factors_ = {};
  std::vector<double> figures_ = {};
  std::vector<double> job_memory_ = {};
  Buffer encoded_ = {};
  uint64_t step_ = 0;
};

}  // namespace syncline
