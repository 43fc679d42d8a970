// The memory that a sender of lossy encodings keeps for one tensor from step to step:
// what one encoding loses is sent with a later one.
//
// Error feedback (Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847):
//   x = g + decay * e;  send C(x);  e = x - C(x)
//   With the codec demo, e is the decoupled momentum of DeMo (Peng et al. 2024, arXiv
//   2411.19870, algorithm 1).
// Momentum correction (DGC, Lin et al. 2018, arXiv 1712.01887, section 3.1):
//   u = momentum * u + g;  x = v + u;  send C(x);  v = x - C(x);  u = 0 where C sent
//   (nesterov: u = momentum * (u + g), x = v + u + g)
// If the momentum is here, the server's optimizer must have none.
//
// The memory is converted when the units of the gradient change. One unit is the loss
// scale. The other is the learning rate, if updates are proportional to gradients: values
// that were held back are then applied with the rate of their own step (Zheng et al.
// 2019, arXiv 1905.10936).
//
// A tile with NaN or infinity is sent densely and leaves the memory unchanged. A tile
// with a value that its codec cannot express (CodecTraits::largest) is sent densely at
// this step, together with its whole memory. Sums over time are kept: what was sent plus
// what is in memory equals what was given, except for the part of a value above the
// largest BF16.
//
// At a learning rate of 0, whatever is sent is lost and gradients have no effect. They
// are sent without the memory, which waits for the next rate that is not 0.
//
//   GradientMemory memory(spec, elements);
//   GradientMemory::Workspace workspace;
//   memory.EncodeTile(transfer, {.gradient = tile, .context = context}, writer,
//                     workspace);
//
// Thread safety: none, except that EncodeTile and Preview of different tiles may run at
// the same time, each with its own workspace.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/codec/codec.h"
#include "comm/codec/frame.h"
#include "comm/compression/transfer.h"

namespace syncline {

// The units in which gradients are measured.
struct GradientUnits {
  float loss_scale = 1;     // the gradients are multiplied by it
  float learning_rate = 0;  // the step's; 0: the memory does not depend on it

  bool operator==(const GradientUnits&) const = default;
};

class GradientMemory {
 public:
  // Creates the memory of a tensor of `elements` values. MemoryKind::kNone keeps nothing.
  GradientMemory(const MemorySpec& spec, uint64_t elements);

  struct Tile {
    std::span<const float> gradient = {};
    EncodeContext context = {};
    GradientUnits units = {};
  };
  // Scratch space of a thread while it encodes; reused for the next tile of any tensor.
  struct Workspace {
    std::vector<float> values = {};
  };
  // Sums of squares. All 0: the tile was not sampled.
  struct Squares {
    double gradient = 0;
    double residual = 0;
  };
  // Encodes one tile into `writer`. For some tiles the result says how much is kept.
  // REQUIRES: context.first_element is a multiple of kTileElements.
  Squares EncodeTile(const Transfer& transfer, const Tile& tile, BlockWriter& writer,
                     Workspace& workspace);

  // Adds a sent tile to the memory again, because it was not counted; it goes with the
  // next encoding. Tiles that are not finite, or of a step with rate 0, are not added.
  // With momentum correction the sum over time is kept, but a velocity that was cleared
  // stays cleared.
  void TakeBack(const Tile& sent);

  // Returns what EncodeTile would encode for the tile. Valid until the workspace is used
  // again.
  std::span<const float> Preview(const Tile& tile, Workspace& workspace) const;

  // Returns what EncodeTile returns for a tile of which `left` is kept.
  static Squares Sample(const Tile& tile, std::span<const float> left);
  // Whether Sample measures this tile.
  static bool IsSampled(const EncodeContext& context);

  // What was given but not sent yet. Empty without memory.
  std::span<const float> residual() const { return residual_; }
  // The momentum that has not reached the residual yet. Empty without momentum
  // correction.
  std::span<const float> velocity() const { return velocity_; }
  // Returns the units of the memory, one for each tile.
  std::vector<GradientUnits> units() const;

  // Takes over what another memory of the same kind and size had kept. Returns false, and
  // changes nothing, if the sizes differ.
  struct Kept {
    std::span<const float> residual = {};
    std::span<const float> velocity = {};
    std::span<const GradientUnits> units = {};
  };
  bool Restore(const Kept& kept);

  // Returns everything that would still be sent if no more gradients came: the residual,
  // and what its velocity would add. Empty without memory. The result lies in the memory
  // itself, which must not be used afterwards.
  std::span<const float> Settle(const GradientUnits& units);

 private:
  // What is kept for a tile besides its values.
  struct TileNotes {
    GradientUnits units = {};
    std::vector<float> of_codec = {};  // EncodeContext::memory
  };
  // Factors for converting the memory.
  struct Carry {
    float velocity = 1;
    float residual = 1;
  };

  Carry CarryTo(const GradientUnits& units, size_t tile) const;
  struct Scratch {
    std::span<float> x = {};
    std::span<float> velocity = {};
  };
  Scratch ScratchFor(size_t elements, Workspace& workspace) const;
  // Returns the largest magnitude of what must be sent, as bits. They are those of
  // infinity or above if it is not finite.
  uint32_t Gather(const Tile& tile, const Scratch& scratch) const;
  // Whether the memory is sent with the gradient.
  bool Joins(const Tile& tile) const;

  const MemorySpec spec_;
  std::vector<float> residual_;  // e, v
  std::vector<float> velocity_;  // u
  std::vector<TileNotes> notes_;
};

}  // namespace syncline
