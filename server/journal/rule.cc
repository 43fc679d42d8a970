#include "server/journal/rule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncline {

absl::Status CheckRule(const SegmentHead& head, const std::string& path,
                       const CheckpointLayout& layout,
                       const std::vector<ShardBlock>& blocks) {
  const TrainingSettings& training = layout.plan->settings();
  if (head.format > 1 || !training.sync().WeighsByAge()) return absl::OkStatus();
  const bool is_same = std::ranges::none_of(blocks, [&](const ShardBlock& block) {
    const uint32_t tensor = block.range.tensor;
    return !layout.tensors[tensor].frozen && layout.plan->RemembersGradients(tensor);
  });
  if (is_same) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path,
      " is of format 1: its server weighed old contributions by the learning rate of "
      "optimizer '",
      training.optimizer.name,
      "', but this program weighs the gradient, which gives different bits; replay it, "
      "or continue from it, with the version of Syncline that wrote it"));
}

}  // namespace syncline
