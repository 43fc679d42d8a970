// What lossy encodings have kept of a worker's gradients, as a file: saved beside a
// checkpoint of the model, it brings back what no step has sent yet.
//
//   WriteResiduals("rank3.residuals", parts);      // all of it, or the old file stays
//   auto parts = ReadResiduals("rank3.residuals");
//
// Little-endian: magic, number of tensors, then for each its name, the codec's text, and
// the counts and values of residual, velocity and units; at last a CRC-32C of all before.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/compression/memory/gradient_memory.h"

namespace syncline {

// Of one tensor.
struct ResidualPart {
  std::string tensor = {};
  std::string codec = {};  // canonical text of the transfers it belongs to
  GradientMemory::Kept kept = {};
};

// Unavailable names the path and why: no such directory, no space, no permission.
absl::Status WriteResiduals(const std::string& path,
                            const std::vector<ResidualPart>& parts);

struct SavedResidual {
  std::string tensor = {};
  std::string codec = {};
  std::vector<float> residual = {};
  std::vector<float> velocity = {};
  std::vector<GradientUnits> units = {};

  GradientMemory::Kept kept() const {
    return {.residual = residual, .velocity = velocity, .units = units};
  }
};

// NotFound; DataLoss when the file is damaged, or is none of these.
absl::StatusOr<std::vector<SavedResidual>> ReadResiduals(const std::string& path);

}  // namespace syncline
