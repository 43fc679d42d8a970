// Reads the YAML description of a job, for `syncline plan`.
//
//   workers: 8
//   optimizer: {name: adamw, options: {beta2: 0.95}, state: int8}
//   schedule: {name: cosine, options: {total_steps: 10000, warmup_steps: 500}}
//   gradient: {clip_global_norm: 1}
//   loss_scaling: torch               # a name alone: its defaults
//   accumulate_steps: 4
//   aggregation: arrival              # or rank_order
//   nonfinite_steps: skip             # or apply
//   mode: {name: ssp, options: {staleness: 3}}   # or ssp:3, as flags have it
//   push_codec: bf16
//   publish_codec: bf16               # and the other settings of docs/settings.md
//   tensors:
//     - {name: embed, shape: [32000, 4096], learning_rate_scale: 0.1, state: f32}
//     - {name: head, shape: [4096], options: {weight_decay: 0}, frozen: true}
//
// All keys but `tensors` are optional. The defaults are those of a Session.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/coordinator/job_spec.h"

namespace syncline {

// `source` names the text in errors, which are Failure::kUsage: "job.yaml:3: 'optimzer'
// is not a key of a job; did you mean 'optimizer'?". Does not check values: see ValidateJob.
absl::StatusOr<JobSpec> ParseJobFile(const std::string& text, const std::string& source);
absl::StatusOr<JobSpec> ReadJobFile(const std::string& path);

}  // namespace syncline
