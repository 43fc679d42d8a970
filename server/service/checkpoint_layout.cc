#include "server/service/checkpoint_layout.h"

#include "comm/base/status.h"

namespace syncline {

absl::StatusOr<std::shared_ptr<const CheckpointLayout>> LayoutOf(const JobSpec& spec) {
  auto layout = std::make_shared<CheckpointLayout>();
  for (const TensorSpec& tensor : spec.tensors) {
    layout->tensors.push_back(
        {.name = tensor.name, .shape = tensor.shape, .frozen = tensor.group.frozen});
  }
  SYNCLINE_ASSIGN_OR_RETURN(layout->plan,
                            TrainingPlan::Create(spec.training, spec.Trained()));
  return layout;
}

}  // namespace syncline
