// Checks the averages and the optimizer state that workers pulled.
#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/sim/replay.h"

namespace syncline::sim {

void Replay::CheckPull(const Reference::Pull& pull) {
  const std::string what =
      absl::StrCat("rank ", pull.rank, " pulled ",
                   pull.array ? absl::StrCat("array ", *pull.array) : "the average",
                   " of tensor ", pull.tensor, " at step ", pull.step);
  const std::optional<std::vector<float>> expected = Expected(pull);
  if (expected.has_value() != pull.status.ok()) {
    return reference_.Violate(
        absl::StrCat(what, ", and heard ", std::string(pull.status.ToString())));
  }
  if (!expected) return;
  const auto is_same = [](float a, float b) {
    return a == b || (std::isnan(a) && std::isnan(b));
  };
  if (std::ranges::equal(*expected, pull.values, is_same)) return;
  reference_.Violate(absl::StrCat(what, ", and got other values"));
}

// Returns the values that the worker should have received; empty: the job keeps none.
std::optional<std::vector<float>> Replay::Expected(const Reference::Pull& pull) {
  const auto slots = plan_->optimizer(pull.tensor).slots();
  const bool is_frozen = trained_[pull.tensor].group.frozen;
  const auto average = std::ranges::find_if(
      slots, [](const StateSlot& one) { return one.name == "ema" || one.name == "swa"; });
  const size_t slot =
      pull.array ? *pull.array : static_cast<size_t>(average - slots.begin());
  if (slot >= slots.size() || (pull.array && is_frozen)) return std::nullopt;
  const Tensor& own = tensors_[pull.tensor];
  std::vector<float> values(own.sum.size());
  if (TypeOf(pull.tensor, slot) == StateType::kF32) {
    values = own.state[slot];
  } else {
    LoadState(SlotOf(pull.tensor, slot), 0, values);
  }
  for (const Block& block : blocks_) {
    const bool is_its = block.range.tensor == pull.tensor;
    if (!is_its || pull.array || block.updates > 0) continue;
    // Nothing was averaged yet.
    std::ranges::copy(PartOf(weights_, block.range),
                      values.begin() + static_cast<ptrdiff_t>(block.range.first_element));
  }
  return values;
}

}  // namespace syncline::sim
