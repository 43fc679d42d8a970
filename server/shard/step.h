// The arithmetic of a step, fused strip by strip so that the sum never leaves the cache:
// weighted sum of all contributions in rank order, gradient transforms, optimizer, and
// encoding of the result. Memory traffic per parameter: each contribution is read once,
// weights and state are read and written once, and the published bytes are written once.
//
// Optimizers and transforms that need statistics of a whole tensor first see the sum of
// each of its tiles (Gather). Each such round reads the contributions once more.
//
// Determinism: an element's result depends only on its contributions, weight, state and
// the statistics. The order of arrival and the division of a block into strips do not
// matter.
//
// Thread safety: none; StepPass owns its scratch memory.
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

// What one member gave to one step of one block: checked frames, at the place where they
// landed.
struct Contribution {
  ShardApplied::Contributor from = {};
  Landed payload = {};  // owns the bytes of `view`
  // Empty if it has been added to the accumulator already.
  BlockView view = {};
  float weight = 0;         // in the sum
  bool bequeathed = false;  // its sender has left since
};

// The memory of one block.
struct BlockMemory {
  std::span<float> weights = {};
  // What workers hold. Empty unless deltas are published.
  std::span<float> view = {};
  std::span<float> accumulator = {};  // empty in jobs that need none
  std::vector<StoredSlot> state = {};
  // Mode asp: workers see weights - view_ahead * state[momentum], where the momentum will
  // take them (docs/modes.md). 0: they see the weights.
  float view_ahead = 0;
  size_t momentum = 0;
};

// A block's input to a step. The mean gradient is scale * (accumulator + weighted sum of
// contributions). If workers vote, each contribution counts once and there is no scale.
// With mean_of_senders, each element is divided by the total weight of the contributions
// that are not zero there; if the codec sends coefficients (CodecBasis), each coefficient
// is.
struct BlockSum {
  BlockRange range = {};
  std::span<const Contribution> contributions = {};
  const BlockMemory& memory;
  float scale = 1;
  // The weights that the contributor computed with, and the strength of the compensation
  // for the delay. Empty: no compensation.
  std::span<const float> shown = {};
  float compensation = 0;
  // For records (record.h). `written`: where the mean gradient is also written. `given`:
  // the mean gradient, if contributions are no longer there. Empty: unused.
  std::span<float> written = {};
  std::span<const float> given = {};
};

// How a tensor is updated at one step.
struct TensorUpdate {
  const Optimizer& optimizer;
  const GradientTransforms* transforms = nullptr;  // null: none at this step
  StepScalars scalars = {};
  TensorData data;
  // Factor of the gradient after its transforms; in mode asp, the weight by age.
  float weight = 1;
  std::span<double> transform_figures = {};  // all zeros before Gather
};

// How a block is published: the label of its frames, and the revision of the weights. The
// revision seeds stochastic rounding and is the same for all receivers of these weights.
struct Publication {
  BlockLabel label = {};
  uint64_t revision = 0;
};

// How an infinite value counts as a vote. kVotes: like any other vote. kKept: it stays
// infinite, so that the check for a finite gradient finds it; sums that are kept between
// steps use this.
enum class Infinity { kVotes, kKept };

class StepPass {
 public:
  // `pool` and options.seed_codec must outlive it.
  StepPass(const ShardOptions& options, BufferPool& pool);

  // Computes accumulator += weighted sum of the contributions.
  void Accumulate(const BlockSum& block);

  // Returns the sum of squares of the mean gradient, tile by tile, then the statistics of
  // `reduction` (which may be null). Votes have no norm: their sum of squares is 0 if
  // they are all finite.
  std::vector<double> Figures(const BlockSum& block, const JobReduction* reduction);

  // Computes the statistics of the whole tensor, round by round. `blocks` are all of its
  // blocks, in order.
  void Gather(const TensorUpdate& update, std::span<const BlockSum> blocks);

  // Updates weights and state, and returns what is published: the weights, or a delta to
  // the view that workers hold. `block.memory.view` is updated to what they hold
  // afterwards.
  Payload Apply(const TensorUpdate& update, const BlockSum& block,
                const Publication& publication);

  // Encodes the whole view that workers hold, or will hold if the block was just seeded.
  Payload Encode(const BlockMemory& memory, const Publication& publication);

 private:
  // Returns the signs of the majority (signSGD) for tensors with votes, otherwise the
  // mean.
  std::span<float> Sum(const BlockSum& block, size_t first, size_t count,
                       Infinity infinity = Infinity::kVotes);
  bool Votes(const BlockSum& block) const {
    return transfers_[block.range.tensor].push.votes;
  }
  // Adds to `sum` each element's mean over the contributions that are not zero there. If
  // the codec has a basis, these are the means of its coefficients.
  // REQUIRES: `sum` is zero, and whole tiles if there is a basis.
  void AddMeansOfSenders(const BlockSum& block, size_t first, std::span<float> sum);
  // Adds the contributions to elements [first, first + sum.size()) to `sum`.
  void Add(const BlockSum& block, size_t first, std::span<float> sum, Infinity infinity);
  // Returns what workers see of the elements from `first` on whose weights are given: at
  // most one tile. The result is valid until the next call.
  std::span<const float> ShownOf(const BlockMemory& memory, size_t first,
                                 std::span<const float> weights);
  // OpenStrip returns the strip as the optimizer sees it, with the transformed gradient.
  // CloseStrip stores state that is not kept in FP32.
  Strip OpenStrip(const TensorUpdate& update, const BlockSum& block, size_t first,
                  size_t count);
  void CloseStrip(const TensorUpdate& update, const BlockSum& block, const Strip& strip);
  void GatherTransforms(const TensorUpdate& update, std::span<const BlockSum> blocks);
  static StepScalars ScalarsAfter(const TensorUpdate& update);
  // Steps one tile in strips and passes each strip's new weights to `stepped` while they
  // are in the cache.
  void StepTile(const TensorUpdate& update, const BlockSum& block, uint32_t tile,
                absl::FunctionRef<void(size_t, std::span<const float>)> stepped);
  // Returns false if a difference between weights and view is not finite, or is larger
  // than its codec can express.
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
  Buffer sum_;    // one tile
  Buffer delta_;  // one tile, once a delta was published
  Buffer shown_;  // one tile, if workers see other values than the weights
  Buffer one_;    // one tile of one contribution, for votes and mean_of_senders
  Buffer sent_;   // one tile of weights, for mean_of_senders
  std::vector<Buffer> scratch_;   // decoded state, one tile per slot
  std::vector<float*> pointers_;  // to the state of the open strip
};

}  // namespace syncline
