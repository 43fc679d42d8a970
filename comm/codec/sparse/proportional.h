// Sampling in proportion to magnitude: the unbiased sparsification of least variance for
// the number of values it sends (Wangni, Wang, Liu and Zhang 2018, NeurIPS, "Gradient
// Sparsification for Communication-Efficient Distributed Optimization", arXiv 1710.09854,
// proposition 1 and algorithm 3).
//
// A value x is sent with probability min(1, |x| / t), as sign(x) max(|x|, t). The t of a
// tile makes these probabilities add up to k. One random number draws all of them
// (systematic sampling, Madow and Madow 1944): floor(k) or ceil(k) are taken, each with
// its own probability to a multiple of 2^-32.
#pragma once

#include <cstdint>
#include <span>

#include "comm/codec/sparse/index_list.h"

namespace syncline {

// t: magnitudes at or above it are surely sent. Infinite where all values are 0.
// REQUIRES: finite values, k >= 1.
double ProportionalThreshold(std::span<const float> values, uint32_t k);

// The positions of about k values, k + 1 at most. `draw` is uniform in 32 bits; `t` comes
// from ProportionalThreshold.
void SampleProportionally(std::span<const float> values, double t, uint32_t draw,
                          IndexList& found);

}  // namespace syncline
