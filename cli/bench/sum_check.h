// Checks that what a codec leaves out of one step arrives exactly in a later one. Error
// feedback promises this, whichever values the codec sends first.
//
// A worker pushes gradients for a few steps, then zeros, until the weights are those that
// plain SGD makes from the sum of all gradients. All workers see the same weights, so
// they stop at the same step.
//
//   const SumCheck check = {.rank = 0, .workers = 2, .ratio = 0.01};
//   SYNCLINE_RETURN_IF_ERROR(CheckSum(check, weights, exchange));
//
// Thread safety: functions without state.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "comm/compression/transfer.h"

namespace syncline {

inline constexpr float kSumCheckLearningRate = 0.25f;

struct SumCheck {
  uint32_t rank = 0;
  uint32_t workers = 1;
  double ratio = 1;  // fraction of the values that a step sends
};

// Runs one step of plain SGD on the mean of all workers' gradients. The weights are new
// when it returns.
using SumExchange = std::function<absl::Status(std::span<const float> gradient)>;

// Returns whether the codec keeps the promise within a number of steps that is worth
// waiting for.
bool PromisesSum(const Transfer& transfer);

// REQUIRES: all weights are zero. Fails with DataLoss, naming the first weight that does
// not reach its value.
absl::Status CheckSum(const SumCheck& check, std::span<const float> weights,
                      const SumExchange& exchange);

}  // namespace syncline
