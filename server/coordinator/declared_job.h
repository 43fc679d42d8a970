// A job as its workers declare it, and what follows from that alone. Made once for all
// who declare the same, beside the coordinator (preparation.h), and shared by whoever
// uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/coordinator/decision.h"
#include "server/coordinator/job_spec.h"

namespace syncline {

// Its bytes, as a worker sent them, and what they are known by: workers say the digest,
// servers get the bytes. The coordinator looks into neither.
struct Declaration {
  std::string digest = {};  // SHA-256 of the bytes
  std::shared_ptr<const std::string> bytes = {};
};

struct DeclaredJob {
  Declaration declaration = {};
  JobSpec spec = {};
  TrainedBlocks trained_blocks = {};
  uint64_t elements = 0;    // of all tensors
  uint64_t parameters = 0;  // likewise, without the books of a sampler

  size_t bytes() const { return declaration.bytes->size(); }
};

// Fails as ValidateJob.
absl::StatusOr<std::shared_ptr<const DeclaredJob>> MakeDeclaredJob(
    Declaration declaration, JobSpec spec);

}  // namespace syncline
