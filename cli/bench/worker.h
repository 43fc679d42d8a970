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
  uint64_t bytes = 0;         // of FP32 gradients
  uint64_t tensor_bytes = 0;  // size of each tensor; the last may be smaller
  int warmup = 3;
  int steps = 20;
  std::string codec = "fp32";
  std::string optimizer = "adamw";
  std::string dtype = "fp32";  // of the program's weights and gradients; bf16, fp16
  bool lends = false;          // gradients lie in Session::AllocateTensor's memory
  bool on_gpu = false;         // weights and gradients lie in the memory of CUDA device 0
  // Where rank 0 writes {"seconds": [...], "bytes_pushed", "bytes_pulled", "checked"}.
  std::string report = {};
};

// InvalidArgument (Failure::kUsage) for a name that is none.
absl::StatusOr<DType> BenchDType(const std::string& name);

// What of the result is checked, by codec: "weights" (each one is what the optimizer makes
// of the gradients), "sums" (weights move with the gradients, and a second job shows that
// what the codec leaves out arrives later, exactly), or "direction" (the first of these).
std::string CheckedOf(const std::string& codec);

// Joins the job of the environment, pushes and pulls, checks the result. DataLoss when it
// is wrong; Unavailable (Failure::kRetryable) when a worker was lost on the way.
absl::Status RunBenchWorker(const BenchWorkerOptions& options);

}  // namespace syncline
