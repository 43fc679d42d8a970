// What a sender of lossy encodings remembers of one tensor from step to step, so that
// what one encoding loses goes with a later one.
//
// Error feedback (Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847):
//   x = g + decay * e;  send C(x);  e = x - C(x)
// Momentum correction (DGC, Lin et al. 2018, arXiv 1712.01887, section 3.1):
//   u = momentum * u + g;  x = v + u;  send C(x);  v = x - C(x);  u = 0 where C sent
//   (nesterov: u = momentum * (u + g), x = v + u + g)
// With momentum here, the server's optimizer must have none.
//
// What is kept is converted when the units of the gradient change: another loss scale, or
// another learning rate, where updates are proportional to gradients: what was held back
// is then applied with the rate of its own step (Zheng et al. 2019, arXiv 1905.10936).
//
// A tile with NaN or infinity travels densely and leaves the memory as it was. A tile with
// a value that its codec cannot express (CodecTraits::largest) travels densely for this
// step, with all that was kept of it. Sums over time are kept: what was sent plus what is
// in memory is what was given, but for the part of a value above the largest BF16.
//
// Where the rate is 0, what is sent is lost, and gradients are worth nothing: they go
// without what is kept, which waits for the next rate that is not 0.
//
//   GradientMemory memory(spec, elements);
//   GradientMemory::Workspace workspace;
//   memory.EncodeTile(transfer, {.gradient = tile, .context = context}, writer, workspace);
//
// Thread safety: none, but that EncodeTile and Preview of different tiles may run at once,
// each with a workspace of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/codec/codec.h"
#include "comm/codec/frame.h"
#include "comm/compression/transfer.h"

namespace syncline {

// What gradients are measured in.
struct GradientUnits {
  float loss_scale = 1;     // they are a multiple by it
  float learning_rate = 0;  // of the step; 0: what is kept does not follow it

  bool operator==(const GradientUnits&) const = default;
};

class GradientMemory {
 public:
  // Of a tensor of `elements` values. MemoryKind::kNone keeps nothing.
  GradientMemory(const MemorySpec& spec, uint64_t elements);

  struct Tile {
    std::span<const float> gradient = {};
    EncodeContext context = {};
    GradientUnits units = {};
  };
  // What a thread needs while it encodes; kept for the next tile, of any tensor.
  struct Workspace {
    std::vector<float> values = {};
  };
  // Sums of squares; all 0: nothing was looked at.
  struct Squares {
    double gradient = 0;
    double residual = 0;
  };
  // Encodes one tile into `writer`. Of some tiles the answer says how much is kept.
  // REQUIRES: context.first_element is a multiple of kTileElements.
  Squares EncodeTile(const Transfer& transfer, const Tile& tile, BlockWriter& writer,
                     Workspace& workspace);

  // What a tile's encoding stood for was not counted: it is kept again, and goes with what
  // is encoded next. What is not finite, or of a step whose rate is 0, is not kept. With
  // momentum correction the sum over time stays; a velocity that was cleared stays cleared.
  void TakeBack(const Tile& sent);

  // What EncodeTile would encode of the tile; good until the workspace is used again.
  std::span<const float> Preview(const Tile& tile, Workspace& workspace) const;

  // What EncodeTile answers of a tile of which `left` is kept; of some tiles.
  static Squares Sample(const Tile& tile, std::span<const float> left);
  // Whether it looks at this tile.
  static bool IsSampled(const EncodeContext& context);

  // What was given but not sent yet; empty without memory.
  std::span<const float> residual() const { return residual_; }
  // The momentum that has not reached it yet; empty but for momentum correction.
  std::span<const float> velocity() const { return velocity_; }
  // Of what is kept, by tile.
  std::vector<GradientUnits> units() const;

  // Takes what another memory of the same kind and size had kept. False, and nothing
  // changes, when the sizes are not those of this memory.
  struct Kept {
    std::span<const float> residual = {};
    std::span<const float> velocity = {};
    std::span<const GradientUnits> units = {};
  };
  bool Restore(const Kept& kept);

  // All that is left to send, were there no more gradients: what is kept, and what its
  // velocity would still bring. Empty without memory. It lies in the memory itself, which
  // has no use afterwards.
  std::span<const float> Settle(const GradientUnits& units);

 private:
  // What is kept of one tile beside its values.
  struct TileNotes {
    GradientUnits units = {};
    std::vector<float> of_codec = {};  // EncodeContext::memory
  };
  // By what to multiply what is kept.
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
  // The largest magnitude of what has to be sent, as bits; infinity's or more when it is
  // not finite.
  uint32_t Gather(const Tile& tile, const Scratch& scratch) const;
  // Whether what is kept goes with the gradient.
  bool Joins(const Tile& tile) const;

  const MemorySpec spec_;
  std::vector<float> residual_;  // e, v
  std::vector<float> velocity_;  // u
  std::vector<TileNotes> notes_;
};

}  // namespace syncline
