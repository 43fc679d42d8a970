#include "server/optimizer/mean.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

constexpr std::string_view kOption = "mean";

class Mean final : public Optimizer {
 public:
  std::string_view name() const override { return kOption; }
  std::vector<StateSlot> slots() const override { return {}; }
  void Apply(const StepScalars& /*scalars*/, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    std::ranges::copy(strip.gradient, strip.master.begin());
  }
};

}  // namespace

bool TakesMean(const GroupOptions& group) { return group.options.contains(kOption); }

absl::Status CheckMean(const GroupOptions& group) {
  if (group == GroupOptions{.options = {{std::string(kOption), 1}}}) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "a tensor with the option mean becomes the mean of what is pushed: say mean=1 and "
      "nothing else, neither another option nor a rate or state of its own, and do not "
      "freeze it");
}

std::unique_ptr<Optimizer> MakeMean() { return std::make_unique<Mean>(); }

}  // namespace syncline
