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
// A tile with NaN or infinity travels densely and leaves the memory as it was, so a
// skipped step spoils nothing. Sums over time are kept: what was sent plus what is in
// memory is what was given.
//
//   GradientMemory memory(spec, elements);
//   memory.EncodeTile(transfer, {.gradient = tile, .context = context}, writer);
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/codec/codec.h"
#include "comm/codec/frame.h"
#include "comm/codec/transfer.h"

namespace syncline {

class GradientMemory {
 public:
  // Of a tensor of `elements` values. MemoryKind::kNone keeps nothing.
  GradientMemory(const MemorySpec& spec, uint64_t elements);

  struct Tile {
    std::span<const float> gradient = {};
    EncodeContext context = {};
    // What the gradient is a multiple by: what is kept is rescaled when it changes.
    float loss_scale = 1;
  };
  // Encodes one tile into `writer`. REQUIRES: context.first_element is a multiple of
  // kTileElements.
  void EncodeTile(const Transfer& transfer, const Tile& tile, BlockWriter& writer);

  // What was given but not sent yet; empty without memory.
  std::span<const float> residual() const { return residual_; }

 private:
  // What is kept of one tile beside its values.
  struct TileNotes {
    float loss_scale = 1;
    std::vector<float> of_codec = {};  // EncodeContext::memory
  };

  bool Gather(const Tile& tile, std::span<float> x, std::span<float> velocity) const;

  const MemorySpec spec_;
  std::vector<float> residual_;  // e, v
  std::vector<float> velocity_;  // u
  std::vector<TileNotes> notes_;
  std::vector<float> scratch_;
};

}  // namespace syncline
