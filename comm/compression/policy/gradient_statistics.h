// What a gradient looks like, as far as it matters for the choice of a codec.
//
//   policy.Saw(tensor, MeasureGradient(gradient.first(kTileElements)));
//
// Thread safety: a pure function.
#pragma once

#include <span>

namespace syncline {

struct GradientStatistics {
  // Share of the blocks of 256 values (kSelectorBlock) that are not all +0: embeddings
  // have few.
  double nonzero_blocks = 1;
  // Share of the squared norm that the largest 1 % of the values hold: 0.08 of a
  // Gaussian, 0.16 of a Laplace distribution, more than half of heavy-tailed ones.
  double top_energy = 0;
};

// Of one tile, as a sample of its tensor: about as long as a top-k of it. A tile with NaN
// or infinity says nothing and gives the defaults, as does an empty one.
GradientStatistics MeasureGradient(std::span<const float> tile);

}  // namespace syncline
