// A job as its workers declare it, with what can be computed from the declaration alone.
// It is created once for all workers that declare the same, on another thread
// (preparation.h), and then shared.
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

// The bytes of a declaration, and their digest. Workers announce the digest, and servers
// receive the bytes. The coordinator does not look into either.
struct Declaration {
  std::string digest = {};  // SHA-256 of the bytes
  std::shared_ptr<const std::string> bytes = {};
};

struct DeclaredJob {
  Declaration declaration = {};
  JobSpec spec = {};
  TrainedBlocks trained_blocks = {};
  uint64_t elements = 0;    // number of elements of all tensors
  uint64_t parameters = 0;  // the same, without the tensor of a sampler (kSamplersBooks)

  size_t bytes() const { return declaration.bytes->size(); }
};

// Fails as ValidateJob does.
absl::StatusOr<std::shared_ptr<const DeclaredJob>> MakeDeclaredJob(
    Declaration declaration, JobSpec spec);

}  // namespace syncline
