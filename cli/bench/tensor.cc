#include "cli/bench/tensor.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "comm/base/limits.h"

namespace syncline {
namespace {

constexpr uint64_t kColumns = 1024;
constexpr uint64_t kStripElements = 4096;  // as in server/shard/step.cc

TensorShape ShapeOf(uint64_t elements) {
  if (elements % kColumns != 0) return TensorShape(std::array{elements});
  return TensorShape(std::array{elements / kColumns, kColumns});
}

// Touches all pages, so that they are mapped before the clock runs.
Buffer Zeroed(size_t bytes) {
  Buffer buffer = Buffer::Allocate(bytes);
  if (bytes > 0) std::memset(buffer.data(), 0, bytes);
  return buffer;
}

template <typename Visit>
void ForEachStrip(uint64_t elements, uint64_t strip, const Visit& visit) {
  for (uint64_t first = 0; first < elements; first += strip) {
    visit(first, std::min(strip, elements - first));
  }
}

}  // namespace

BenchTensor::BenchTensor(const Optimizer& optimizer, StateType state, uint64_t elements)
    : optimizer_(optimizer),
      shape_(ShapeOf(elements)),
      gradient_(Zeroed(elements * sizeof(float))),
      master_(Zeroed(elements * sizeof(float))) {
  for (const StateSlot& slot : optimizer.slots()) {
    const StateType type = EffectiveType(state, slot.kind, elements);
    const size_t scratch = type == StateType::kF32 ? 0 : kTileElements * sizeof(float);
    Buffer memory = Zeroed(StateBytes(type, elements));
    slots_.push_back(
        {.stored = {.type = type, .kind = slot.kind, .memory = memory.data()},
         .memory = memory,
         .scratch = Zeroed(scratch)});
  }
  pointers_.resize(slots_.size());
  if (const auto* reduction = optimizer.tensor_reduction(); reduction != nullptr) {
    factors_.resize(reduction->Factors(shape_));
    figures_.resize(reduction->Figures(shape_));
  }
  if (const auto* reduction = optimizer.job_reduction(); reduction != nullptr) {
    job_memory_.resize(reduction->Memory());
  }
}

std::span<float> BenchTensor::Floats(const Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}

Strip BenchTensor::Open(uint64_t first, uint64_t count) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.stored.type == StateType::kF32) {
      pointers_[i] = Floats(slot.memory).data() + first;
      continue;
    }
    const std::span<float> decoded = Floats(slot.scratch).first(count);
    LoadState(slot.stored, first, decoded);
    pointers_[i] = decoded.data();
  }
  return {.gradient = gradient().subspan(first, count),
          .master = master().subspan(first, count),
          .state = pointers_,
          .first_element = first};
}

void BenchTensor::Close(const Strip& strip) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].stored.type == StateType::kF32) continue;
    StoreState(slots_[i].stored, strip.first_element,
               {strip.state[i], strip.gradient.size()},
               {.update = step_,
                .slot = static_cast<uint32_t>(i),
                .first_element = strip.first_element});
  }
}

void BenchTensor::Reduce(const StepScalars& scalars, const TensorData& data) {
  if (const auto* reduction = optimizer_.tensor_reduction(); reduction != nullptr) {
    std::ranges::fill(figures_, 0);
    for (int round = 0; round < reduction->rounds(); ++round) {
      ForEachStrip(shape_.elements(), kTileElements, [&](uint64_t first, uint64_t count) {
        reduction->Reduce(round, scalars, Open(first, count), data);
      });
      reduction->Finish(round, scalars, data);
    }
  }
  if (const auto* reduction = optimizer_.job_reduction(); reduction != nullptr) {
    std::vector<double> sums(reduction->Figures());
    ForEachStrip(shape_.elements(), kTileElements, [&](uint64_t first, uint64_t count) {
      reduction->Reduce(Open(first, count), sums);
    });
    reduction->Finish(scalars, sums, job_memory_);
  }
}

void BenchTensor::Step(double learning_rate, const Codec* out) {
  const StepScalars scalars = {
      .step = ++step_,
      .learning_rate = learning_rate,
      .contribution = optimizer_.contributions().KindAt(step_ - 1)};
  const TensorData data = {.shape = shape_,
                           .factors = factors_,
                           .figures = figures_,
                           .job_memory = job_memory_};
  Reduce(scalars, data);
  const size_t width = out == nullptr ? 0 : out->MaxEncodedBytes(1);
  if (encoded_.size() != shape_.elements() * width) {
    encoded_ = Zeroed(shape_.elements() * width);
  }
  ForEachStrip(shape_.elements(), kStripElements, [&](uint64_t first, uint64_t count) {
    const Strip strip = Open(first, count);
    optimizer_.Apply(scalars, strip, data);
    Close(strip);
    if (out == nullptr) return;
    out->Encode(strip.master, {}, {.step = step_, .first_element = first},
                encoded_.mutable_view().subspan(first * width, count * width));
  });
}

double BenchTensor::bytes_per_element() const {
  double bytes = 3 * sizeof(float);
  for (const Slot& slot : slots_) {
    bytes += 2 * static_cast<double>(slot.memory.size()) /
             static_cast<double>(shape_.elements());
  }
  return bytes;
}

}  // namespace syncline
