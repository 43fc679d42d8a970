// SGD whose Nesterov momentum moves at every N-th contribution only (delayed Nesterov,
// Liu et al., 2024, arXiv 2401.09135): the options momentum_every N and
// momentum_between c of sgd, for mode asp. There each contribution is a step. With the
// momentum in every one of them, the direction of one outdated contribution would be
// applied again and again before others have a say. So N contributions are one update:
//
//   g += weight_decay * p
//   s += g
//   at each N-th step:  m = momentum * m + s / N;  s = 0
//     p -= lr * ((1 - c * N + c) * momentum * m + g / N)
//   at the others:
//     p -= lr * (c * momentum * m + g / N)
//
// Over N steps, the mean of the gradients and momentum * m are applied once each, as
// Nesterov does in one step. c is the share of the momentum that each step in between
// applies: 0 means all of it at the N-th, 1 / N the same at each. With N = 1 it is sgd
// with nesterov. Decoupled decay: p -= lr / N * weight_decay * p instead of the first
// line.
//
// State: "momentum" m and "delayed" s. If N changes while a job runs, the sum that has
// begun is divided by the new N.
#pragma once

#include <memory>

#include "server/optimizer/optimizer.h"

namespace syncline {

// Whether a tensor's momentum is delayed. REQUIRES: valid settings.
bool DelaysMomentum(const OptimizerSettings& settings, const GroupOptions& group);

// REQUIRES: `values` are valid options of sgd, with momentum_every above 1.
std::unique_ptr<Optimizer> MakeDelayedNesterov(const OptionValues& values);

}  // namespace syncline
