#include "server/coordinator/declared_job.h"

#include <utility>

#include "comm/base/status.h"

namespace syncline {

absl::StatusOr<std::shared_ptr<const DeclaredJob>> MakeDeclaredJob(
    Declaration declaration, JobSpec spec) {
  SYNCLINE_RETURN_IF_ERROR(ValidateJob(spec));
  auto job = std::make_shared<DeclaredJob>();
  for (const BlockRange& block : spec.Blocks()) {
    job->trained_blocks.Add(!spec.tensors[block.tensor].group.frozen);
  }
  for (const TensorSpec& tensor : spec.tensors) {
    job->elements += tensor.elements();
    if (tensor.name != kSamplersBooks) job->parameters += tensor.elements();
  }
  job->declaration = std::move(declaration);
  job->spec = std::move(spec);
  return job;
}

}  // namespace syncline
