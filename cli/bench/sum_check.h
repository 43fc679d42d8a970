// Whether what a codec leaves out of one step arrives with a later one, exactly: what error
// feedback promises, whatever the codec chooses to send first.
//
// A worker pushes gradients for a few steps, then zeros, until the weights are those that
// plain SGD makes of the sum of all that was pushed. All workers see the same weights, and
// so stop at the same step.
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
  double ratio = 1;  // the share of the values that a step sends
};

// One step of plain SGD on the mean of all workers' gradients; the weights are new then.
using SumExchange = std::function<absl::Status(std::span<const float> gradient)>;

// Whether the codec promises it in so few steps that one may wait for them.
bool PromisesSum(const Transfer& transfer);

// The weights are zeros when it begins. DataLoss names the first one that does not become
// what it must.
absl::Status CheckSum(const SumCheck& check, std::span<const float> weights,
                      const SumExchange& exchange);

}  // namespace syncline
