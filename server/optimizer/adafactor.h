// Adafactor (Shazeer and Stern, 2018, arXiv 1804.04235) as transformers' Adafactor has
// it: Adam's second moment, kept as row and column means of each matrix.
//   rate = lr without relative_step; with it lr is a factor, and
//          rate = lr * min(1e-2, t^-1/2), with warmup_init lr * min(1e-6 * t, t^-1/2)
//   alpha = rate * max(eps2, rms(p)); without scale_parameter alpha = rate
//   b = 1 - t^-decay_rate;  s = g^2 + eps1
//   R = b * R + (1 - b) * mean of each row of s;  C the same for each column
//   u = g / sqrt(R / mean(R)) / sqrt(C);  u /= max(1, rms(u) / clip_threshold)
//   u = m = beta1 * m + (1 - beta1) * alpha * u;  without beta1 u = alpha * u
//   p -= alpha * weight_decay * p + u
// Matrices are the last two dimensions; mean(R) is that of the matrix. Tensors of fewer
// than two dimensions keep V = b * V + (1 - b) * s instead, and u = g / sqrt(V).
//
// Kept per tensor: R and C of every matrix, or V, as factors in FP32; one slot for m, if
// beta1 is above 0. With transformers' lr=None leave lr at 1; a schedule then multiplies
// the relative step.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> AdafactorOptions();
// Checks more than the ranges of the table.
absl::Status CheckAdafactor(const OptionValues& values);

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeAdafactor(const OptionValues& values);

}  // namespace syncline
