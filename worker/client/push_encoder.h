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
    float loss_scale = 1;                  // of the gradient
  };
  // Dense FP32 is borrowed from the gradient, unless options.push_memory takes it.
  Payload Encode(const Contribution& contribution);

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
  std::shared_ptr<std::byte> LentMemory(size_t bytes) const;

  const ExchangeOptions options_;
  BufferPool& pool_;
  std::vector<GradientMemory> memories_;     // of the tensors, in order
  std::unordered_map<uint32_t, Sent> sent_;  // by block
};

}  // namespace syncline
