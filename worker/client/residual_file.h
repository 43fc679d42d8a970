// Saves a worker's error feedback (the parts of gradients that lossy codecs have not sent
// yet) in a file, and reads it again. The file belongs to a checkpoint of the model.
//
//   WriteResiduals("rank3.residuals", parts);      // replaces the file as a whole
//   auto parts = ReadResiduals("rank3.residuals");
//
// The format is little-endian: a magic number and the number of tensors. Then come for
// each tensor its name, the codec's text, residual, velocity and units, each as a count
// and its values. The file ends with a CRC-32C of everything before.
//
// Thread safety: functions without state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/compression/memory/gradient_memory.h"

namespace syncline {

// The error feedback of one tensor.
struct ResidualPart {
  std::string tensor = {};
  std::string codec = {};  // canonical text of the job's push codec
  GradientMemory::Kept kept = {};
};

// Writes the file. On an error the old file stays. Fails with Unavailable, which names
// the path and the reason: no such directory, no space, no permission.
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

// Reads the file. NotFound: it cannot be opened. DataLoss: it is damaged, or not a file
// of residuals.
absl::StatusOr<std::vector<SavedResidual>> ReadResiduals(const std::string& path);

}  // namespace syncline
