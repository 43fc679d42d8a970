// The arithmetic of a step: weighted sum of all contributions in rank order, gradient
// transforms, optimizer, and encoding for the way back, fused strip by strip so that the
// sum never leaves the cache. Memory traffic per parameter: each contribution once,
// weights and state once in and out, the published bytes once.
//
// Optimizers and transforms that need figures about a whole tensor first see the sum of
// every tile of it (Gather), which reads the contributions once more for each round.
//
// Bits: an element's result depends on its contributions, weight, state and the figures
// only. Neither the order of arrival nor the way a block is cut into strips shows in it.
//
// Thread safety: none; it owns its scratch memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "comm/base/buffer.h"
#include "comm/codec/frame.h"
#include "server/optimizer/state_storage.h"
#include "server/optimizer/training.h"
#include "server/shard/shard.h"

namespace syncline {

// What one member gave to one step of one block: checked frames, where they landed.
struct Contribution {
  ShardApplied::Contributor from = {};
  Landed payload = {};      // keeps the bytes of `view`
  BlockView view = {};      // no tiles: it is in the accumulator already
  float weight = 0;         // in the sum
  bool bequeathed = false;  // its sender has left since
};

// Where one block lives.
struct BlockMemory {
  std::span<float> weights = {};
  std::span<float> view = {};         // what workers hold; empty unless deltas go out
  std::span<float> accumulator = {};  // empty in jobs that need none
  std::vector<StoredSlot> state = {};
};

// A block's part of a step. The mean gradient is scale * (accumulator + the weighted sum
// of contributions). Of votes, each contribution counts once, and there is no scale. Where
// the transfer says mean_of_senders each element is divided by the weights of the
// contributions that are not zero there.
struct BlockSum {
  BlockRange range = {};
  std::span<const Contribution> contributions = {};
  const BlockMemory& memory;
  float scale = 1;
  // What the contributor computed with, and how strongly that is made up for; empty: not.
  std::span<const float> shown = {};
  float compensation = 0;
  // Of records (record.h): where the mean gradient is written, too, and what it is when
  // contributions are not there any more. Empty: neither.
  std::span<float> written = {};
  std::span<const float> given = {};
};

// How a tensor is updated at one step.
struct TensorUpdate {
  const Optimizer& optimizer;
  const GradientTransforms* transforms = nullptr;  // null: none at this step
  StepScalars scalars = {};
  TensorData data;
  // Multiplies the gradient behind its transforms: mode asp, by age.
  float weight = 1;
  std::span<double> transform_figures = {};  // zero before Gather
};

// How a block is published: the frames' label, and which revision of the weights it is
// (the same for all who receive these weights, for stochastic rounding).
struct Publication {
  BlockLabel label = {};
  uint64_t revision = 0;
};

// What an infinite value is among votes: a vote like others, or infinite still, for the
// check that the gradient is finite. In a sum that is kept between steps it stays infinite
// until the step.
enum class Infinity { kVotes, kKept };

class StepPass {
 public:
  // `pool` and options.seed_codec outlive it.
  StepPass(const ShardOptions& options, BufferPool& pool);

  // accumulator += weighted sum of the contributions.
  void Accumulate(const BlockSum& block);

  // Sum of squares of the mean gradient, tile by tile, then the figures of `reduction`
  // (which may be null). Votes have no part in a norm: theirs is 0, if they are finite.
  std::vector<double> Figures(const BlockSum& block, const JobReduction* reduction);

  // The rounds of figures about the whole tensor, whose blocks are `blocks` in order.
  void Gather(const TensorUpdate& update, std::span<const BlockSum> blocks);

  // Updates weights and state, and returns what is published: the weights, or what is to
  // be added to the view that workers hold, which then is `block.memory.view` again.
  Payload Apply(const TensorUpdate& update, const BlockSum& block,
                const Publication& publication);

  // All of the view that workers hold, or shall hold when the block has just begun.
  Payload Encode(const BlockMemory& memory, const Publication& publication);

 private:
  // Signs of the majority (signSGD) in tensors that are voted about, otherwise the mean.
  std::span<float> Sum(const BlockSum& block, size_t first, size_t count,
                       Infinity infinity = Infinity::kVotes);
  bool Votes(const BlockSum& block) const {
    return transfers_[block.range.tensor].push.votes;
  }
  // sum += each value's mean over those who sent it, which is the whole of the sum.
  void AddMeansOfSenders(const BlockSum& block, size_t first, std::span<float> sum);
  // sum += contributions to elements [first, first + sum.size()).
  void Add(const BlockSum& block, size_t first, std::span<float> sum, Infinity infinity);
  // The strip as the optimizer sees it, gradient transformed. CloseStrip stores state
  // that is not kept in FP32.
  Strip OpenStrip(const TensorUpdate& update, const BlockSum& block, size_t first,
                  size_t count);
  void CloseStrip(const TensorUpdate& update, const BlockSum& block, const Strip& strip);
  void GatherTransforms(const TensorUpdate& update, std::span<const BlockSum> blocks);
  static StepScalars ScalarsAfter(const TensorUpdate& update);
  // Steps one tile in strips, and shows each one's new weights while they are in the
  // cache.
  void StepTile(const TensorUpdate& update, const BlockSum& block, uint32_t tile,
                absl::FunctionRef<void(size_t, std::span<const float>)> stepped);
  // False when a difference of weights and view is not finite, or more than its codec
  // can express.
  bool EncodeDelta(const BlockMemory& memory, const Publication& publication,
                   uint32_t tile, BlockWriter& writer);
  const Transfer& PublishOf(const BlockLabel& label) const {
    return transfers_[label.range.tensor].publish;
  }
  BlockWriter WriterFor(const BlockLabel& label, const Codec& codec);
  EncodeContext ContextOf(const Publication& publication, size_t offset) const;

  const std::vector<TensorTransfers> transfers_;
  const Codec& fp32_;
  const Checksum checksum_;
  const uint64_t seed_;
  const std::function<std::shared_ptr<std::byte>(size_t)> publish_memory_;
  BufferPool& pool_;
  Buffer sum_;                    // one tile
  Buffer delta_;                  // one tile, once a delta was published
  Buffer one_;                    // one tile of one contribution, of votes and senders
  Buffer sent_;                   // one tile of weights, of senders
  std::vector<Buffer> scratch_;   // decoded state, a tile for each slot
  std::vector<float*> pointers_;  // of the open strip's state
};

}  // namespace syncline
