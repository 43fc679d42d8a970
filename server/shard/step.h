// The arithmetic of a step: weighted sum of all contributions in rank order, optimizer,
// and encoding for the way back, fused strip by strip so that the sum never leaves the
// cache. Memory traffic per parameter: each contribution once, weights and state once in
// and out, the published bytes once.
//
// Bits: an element's result depends on its contributions, weight and state only. Neither
// the order of arrival nor the way a block is cut into strips shows in it.
//
// Thread safety: none; it owns its scratch memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/frame.h"
#include "server/optimizer/optimizer.h"
#include "server/shard/shard.h"

namespace syncline {

// What one member gave to one step of one block: checked frames, where they landed.
struct Contribution {
  ShardApplied::Contributor from;
  Slice payload;  // keeps the bytes of `view`
  BlockView view;
  float weight = 0;  // share of the step's samples, set by SetWeights
};

// samples / (sum of samples), in float64 and rounded once.
void SetWeights(std::span<Contribution> contributions);

// Master weights and optimizer state of one block.
struct BlockMemory {
  std::span<float> weights;
  std::array<float*, kMaxStateSlots> state = {};
};

class StepPass {
 public:
  // `pool` and the codecs of `options` outlive it.
  StepPass(const ShardOptions& options, std::unique_ptr<Optimizer> optimizer,
           BufferPool& pool);

  int StateSlots() const { return optimizer_->StateSlots(); }

  // Sum of squares of the weighted mean gradient, tile by tile.
  std::vector<double> SquareSums(uint32_t elements,
                                 std::span<const Contribution> contributions);

  // Updates `memory` and returns the published view of the result.
  Payload Apply(const StepScalars& scalars, std::span<const Contribution> contributions,
                const BlockMemory& memory, const BlockLabel& label);

  // The published view of weights as they are.
  Payload Encode(std::span<float> weights, const BlockLabel& label);

 private:
  BlockWriter WriterFor(const BlockLabel& label);

  const Codec& push_codec_;
  const Codec& publish_codec_;
  const Checksum checksum_;
  const std::function<std::shared_ptr<std::byte>(size_t)> publish_memory_;
  const std::unique_ptr<Optimizer> optimizer_;
  BufferPool& pool_;
  Buffer sum_;  // one strip, or one tile in jobs whose steps are decided
};

}  // namespace syncline
