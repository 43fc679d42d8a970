// The tensors of a job, as its checkpoints name them.
//
// Thread safety: pure function.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/checkpoint/part.h"
#include "server/coordinator/job_spec.h"

namespace syncline {

// Fails if no optimizer accepts the settings in `spec`.
absl::StatusOr<std::shared_ptr<const CheckpointLayout>> LayoutOf(const JobSpec& spec);

}  // namespace syncline
