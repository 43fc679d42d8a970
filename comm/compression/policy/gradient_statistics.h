// Statistics of a gradient that matter for the choice of a codec.
//
//   policy.Saw(tensor, MeasureGradient(gradient.first(kTileElements)));
//
// Thread safety: a pure function.
#pragma once

#include <span>

namespace syncline {

struct GradientStatistics {
  // Share of the blocks of 256 values (kSelectorBlock) that are not all +0. Embeddings
  // have few.
  double nonzero_blocks = 1;
  // Share of the squared norm that the largest 1 % of the values hold: 0.08 for a
  // Gaussian, 0.16 for a Laplace distribution, more than half for heavy-tailed ones.
  double top_energy = 0;
};

// Measures one tile as a sample of its tensor. It takes about as long as a top-k of the
// tile. A tile that is empty or holds NaN or infinity gives the defaults.
GradientStatistics MeasureGradient(std::span<const float> tile);

}  // namespace syncline
