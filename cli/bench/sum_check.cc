#include "cli/bench/sum_check.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr uint32_t kSteps = 4;  // with gradients; the later ones push zeros
// Rounds of 1 / ratio steps until all must have arrived. A quarter is enough if values
// are chosen by size. A random choice needs ln(elements) / ratio steps, once for the
// gradients and once for the weights.
constexpr double kRoundsOfAll = 64;
constexpr double kLeastRatio = 1e-3;
constexpr double kTolerance = 1e-5;  // allows another order of FP32 sums

// Multiples of 2^-6 below 1/2, which differ between elements, ranks and steps. So the
// largest values of a tile differ, and sums are exact.
float GradientAt(uint32_t rank, uint32_t step, size_t element) {
  const size_t mixed = element * 31 + rank * size_t{17} + step * size_t{7};
  return (static_cast<float>(mixed % 61) - 30) / 64;
}

std::vector<double> ExpectedWeights(uint32_t workers, size_t elements) {
  std::vector<double> expected(elements);
  for (size_t i = 0; i < elements; ++i) {
    double sum = 0;
    for (uint32_t step = 0; step < kSteps; ++step) {
      for (uint32_t rank = 0; rank < workers; ++rank) sum += GradientAt(rank, step, i);
    }
    expected[i] = -kSumCheckLearningRate * sum / workers;
  }
  return expected;
}

// Returns the index of the first wrong weight; weights.size() if all are right.
size_t FirstWrong(std::span<const float> weights, const std::vector<double>& expected) {
  size_t i = 0;
  while (i < weights.size() && std::abs(weights[i] - expected[i]) <= kTolerance) ++i;
  return i;
}

}  // namespace

bool PromisesSum(const Transfer& transfer) {
  if (!transfer.selector || transfer.chooses() || transfer.mean_of_senders) return false;
  const SelectorSpec& selector = *transfer.selector;
  if (selector.kind == SelectorKind::kBlocks) return true;
  return transfer.memory.kind == MemoryKind::kErrorFeedback &&
         transfer.memory.decay == 1 && selector.kind != SelectorKind::kThreshold &&
         selector.scale == RandomKScale::kNone && selector.ratio >= kLeastRatio;
}

absl::Status CheckSum(const SumCheck& check, std::span<const float> weights,
                      const SumExchange& exchange) {
  const std::vector<double> expected = ExpectedWeights(check.workers, weights.size());
  const auto limit = kSteps + static_cast<uint32_t>(kRoundsOfAll / check.ratio);
  std::vector<float> gradient(weights.size());
  size_t wrong = 0;
  for (uint32_t step = 0; step < limit; ++step) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = step < kSteps ? GradientAt(check.rank, step, i) : 0;
    }
    SYNCLINE_RETURN_IF_ERROR(exchange(gradient));
    if (step + 1 < kSteps) continue;
    wrong = FirstWrong(weights, expected);
    if (wrong == weights.size()) return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "weight ", wrong, " is ", weights[wrong], ", but the pushed gradients give ",
      expected[wrong], ", ", limit - kSteps,
      " steps after the last gradient: the codec breaks its promise"));
}

}  // namespace syncline
