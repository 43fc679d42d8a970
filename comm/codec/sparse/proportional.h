// Sampling in proportion to magnitude. It is the unbiased sparsification of least
// variance for the number of values that it sends (Wangni, Wang, Liu and Zhang 2018,
// NeurIPS, "Gradient Sparsification for Communication-Efficient Distributed
// Optimization", arXiv 1710.09854, proposition 1 and algorithm 3).
//
// A value x is sent with probability min(1, |x| / t), as sign(x) max(|x|, t). The t of a
// tile makes these probabilities add up to k. One random number draws the whole sample
// (systematic sampling, Madow and Madow 1944), which has floor or ceil of k values. Each
// value has its own probability up to a multiple of 2^-32.
#pragma once

#include <cstdint>
#include <span>

#include "comm/codec/sparse/index_list.h"

namespace syncline {

// Returns t; magnitudes at or above it are always sent. It is infinite if all values are
// 0. REQUIRES: finite values, k >= 1.
double ProportionalThreshold(std::span<const float> values, uint32_t k);

// Finds the positions of about k values, at most k + 1. `draw` is uniform in 32 bits. `t`
// comes from ProportionalThreshold.
void SampleProportionally(std::span<const float> values, double t, uint32_t draw,
                          IndexList& found);

}  // namespace syncline
