// A job written down as YAML, for `syncline plan`.
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
// All but `tensors` may be left out, and is then what a Session would declare.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/coordinator/job_spec.h"

namespace syncline {

// `source` is named in errors, which are Failure::kUsage: "job.yaml:3: 'optimzer' is no
// key of a job; did you mean 'optimizer'?". What the values mean is not checked: see
// ValidateJob.
absl::StatusOr<JobSpec> ParseJobFile(const std::string& text, const std::string& source);
absl::StatusOr<JobSpec> ReadJobFile(const std::string& path);

}  // namespace syncline
