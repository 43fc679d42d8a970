// Encodes contributions, and keeps those that could not be encoded a second time: what a
// lossy encoding loses goes into the memory of its tensor at once, so a repetition sends
// the same bytes, under the epoch of the day.
//
// Thread safety: none; the exchange owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/frame.h"
#include "comm/codec/memory/gradient_memory.h"
#include "worker/client/codec_cost.h"
#include "worker/client/exchange_options.h"

namespace syncline {

class PushEncoder {
 public:
  // `elements` of each tensor. `pool` outlives the encoder.
  PushEncoder(const ExchangeOptions& options, std::span<const uint64_t> elements,
              BufferPool& pool);

  struct Contribution {
    uint32_t block = 0;
    BlockLabel label = {};
    std::span<const float> gradient = {};  // the block's elements
    GradientUnits units = {};
  };
  // Dense FP32 is borrowed from the gradient, unless options.push_memory takes it.
  Payload Encode(const Contribution& contribution);

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
  // |residual| / |gradient| of late, of all tensors together; 0: not known.
  double residual_ratio() const;

  // The block's contribution was counted.
  void Forget(uint32_t block) { sent_.erase(block); }

 private:
  struct Sent {
    Payload payload = {};
    uint64_t epoch = 0;
  };

  BlockLabel Labelled(const Contribution& contribution) const;
  Payload EncodeDense(const Contribution& contribution, const Codec& codec);
  Payload EncodeCompressed(const Contribution& contribution, const Transfer& transfer);
  void EncodeTiles(const Contribution& contribution, const Transfer& transfer,
                   GradientMemory& memory, BlockWriter& writer) const;
  std::shared_ptr<std::byte> LentMemory(size_t bytes) const;

  const ExchangeOptions options_;
  BufferPool& pool_;
  std::vector<GradientMemory> memories_;     // of the tensors, in order
  std::unordered_map<uint32_t, Sent> sent_;  // by block
  CodecCost cost_;
  GradientMemory::Squares squares_;  // of all memories
};

}  // namespace syncline
