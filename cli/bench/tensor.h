// A tensor with its optimizer state in this process's memory. It is stepped strip by
// strip as in a shard, but without the sum of contributions: the gradient is given.
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
  // Makes a matrix with rows of 1,024 elements if `elements` is a multiple of that.
  // `optimizer` must outlive the tensor. The caller sets weights and gradient; state is
  // zero.
  BenchTensor(const Optimizer& optimizer, StateType state, uint64_t elements);

  std::span<float> gradient() { return Floats(gradient_); }
  std::span<float> master() { return Floats(master_); }

  // Makes one update, with all reductions that the optimizer needs. Also encodes the new
  // weights with `out`, unless it is null.
  void Step(double learning_rate, const Codec* out);

  // Returns the bytes that one update must move per element, without reductions: the
  // gradient is read, weights and state are read and written.
  double bytes_per_element() const;

 private:
  struct Slot {
    StoredSlot stored = {};  // in `memory`
    Buffer memory = {};
    Buffer scratch = {};  // one tile in FP32; empty if the state is FP32
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
  std::vector<float*> pointers_ = {};  // to the state of the open strip
  std::vector<float> factors_ = {};
  std::vector<double> figures_ = {};
  std::vector<double> job_memory_ = {};
  Buffer encoded_ = {};
  uint64_t step_ = 0;
};

}  // namespace syncline
