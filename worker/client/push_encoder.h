// Encodes contributions, and keeps those that could not be encoded a second time: what a
// lossy encoding loses goes into the memory of its tensor at once, so a repetition sends
// the same bytes, under the epoch of the day.
//
// Thread safety: none; the exchange owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/frame.h"
#include "comm/codec/sparse/tensor_histogram.h"
#include "comm/compression/memory/gradient_memory.h"
#include "worker/client/codec_chooser.h"
#include "worker/client/codec_cost.h"
#include "worker/client/exchange_options.h"
#include "worker/client/memory_view.h"

namespace syncline {

class PushEncoder {
 public:
  // `elements` of each tensor. `pool` outlives the encoder.
  PushEncoder(const ExchangeOptions& options, std::span<const uint64_t> elements,
              BufferPool& pool);

  struct Contribution {
    uint32_t block = 0;
    BlockLabel label = {};
    ConstMemoryView gradient = {};  // the whole tensor's
    GradientUnits units = {};
  };
  // Dense FP32 is borrowed from a gradient in FP32, unless options.push_memory takes it.
  Payload Encode(const Contribution& contribution);

  // The contribution was not counted: what can be kept of it goes with later ones, of the
  // tensors that have a memory.
  void TakeBack(const Contribution& contribution);

  // What a worker that leaves has to send of a tensor; empty where nothing was kept. Its
  // memory has no use afterwards.
  std::span<const float> Settle(uint32_t tensor, const GradientUnits& units);
  // As it is, in FP32.
  Payload EncodeParting(const Contribution& contribution) {
    return EncodeDense(contribution, *options_.seed_codec);
  }

  GradientMemory& memory(uint32_t tensor) { return memories_[tensor]; }
  // Of compressed contributions.
  const CodecCost& cost() const { return cost_; }
  // So many bytes took so long on the wire.
  void Sent(size_t bytes, absl::Duration time) {
    chooser_.Sent({.bytes = bytes, .time = time});
  }
  // What was chosen, and why; empty when the job leaves no choice.
  const std::string& choice() const { return chooser_.Reason(); }
  // |residual| / |gradient| of late, of all tensors together; 0: not known.
  double residual_ratio() const;

  // The block's contribution was counted.
  void Forget(uint32_t block) { sent_.erase(block); }

 private:
  struct SentBlock {
    Payload payload = {};
    uint64_t epoch = 0;
  };
  // Of selectors that look at whole tensors.
  struct Threshold {
    std::optional<uint64_t> step = std::nullopt;
    float value = 0;
  };

  BlockLabel Labelled(const Contribution& contribution) const;
  // So many of the block's elements, from number `first` of the block on; until the next
  // call.
  std::span<const float> Read(const Contribution& contribution, size_t first,
                              size_t elements);
  Payload EncodeDense(const Contribution& contribution, const Codec& codec);
  Payload EncodeCompressed(const Contribution& contribution, const Transfer& transfer);
  float ThresholdOf(const Contribution& contribution, const Transfer& transfer);
  // Tells the chooser what the block took.
  void Measure(const Contribution& contribution, const Transfer& transfer,
               absl::Duration encoding);
  void EncodeTiles(const Contribution& contribution, const Transfer& transfer,
                   BlockWriter& writer);
  std::shared_ptr<std::byte> LentMemory(size_t bytes) const;
  Payload Fitted(Payload payload, size_t room) const;

  const ExchangeOptions options_;
  BufferPool& pool_;
  std::vector<GradientMemory> memories_;          // of the tensors, in order
  std::unordered_map<uint32_t, SentBlock> sent_;  // by block
  CodecChooser chooser_;
  std::vector<Threshold> thresholds_;  // by tensor
  std::vector<float> scratch_;         // a tile, of gradients that are not FP32
  std::optional<TensorHistogram> histogram_;
  CodecCost cost_;
  GradientMemory::Squares squares_;  // of all memories
};

}  // namespace syncline
