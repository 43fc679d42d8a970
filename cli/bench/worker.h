// One worker process of `syncline bench pushpull` (the hidden subcommand `bench
// pushpull-worker`).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/dtype.h"

namespace syncline {

struct BenchWorkerOptions {
  uint64_t bytes = 0;         // total of all gradients, in FP32
  uint64_t tensor_bytes = 0;  // size of each tensor; the last may be smaller
  int warmup = 3;
  int steps = 20;
  std::string codec = "fp32";
  std::string optimizer = "adamw";
  // Type of the program's weights and gradients: fp32, bf16 or fp16.
  std::string dtype = "fp32";
  bool lends = false;   // gradients are in memory of Session::AllocateTensor
  bool on_gpu = false;  // weights and gradients are in memory of CUDA device 0
  // Path where rank 0 writes {"seconds": [...], "bytes_pushed", "bytes_pulled",
  // "checked"}.
  std::string report = {};
};

// Fails with InvalidArgument (Failure::kUsage) for an unknown name.
absl::StatusOr<DType> BenchDType(const std::string& name);

// Returns which check the codec allows:
//   weights     each weight equals what the optimizer makes of the gradients
//   sums        weights move in the right direction, and a second job shows that values
//               left out of one step arrive exactly in later ones
//   direction   only the first of these two
std::string CheckedOf(const std::string& codec);

// Joins the job that the environment names, pushes and pulls, and checks the result.
// Fails with DataLoss if the result is wrong, and with Unavailable (Failure::kRetryable)
// if a worker was lost.
absl::Status RunBenchWorker(const BenchWorkerOptions& options);

}  // namespace syncline
