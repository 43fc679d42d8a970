// Writes a checkpoint's weights as safetensors to the file of --out.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/checkpoint/reader.h"

namespace syncline {

// Checks that `path` may be written: a regular file or a new one, in a directory. Fails
// with InvalidArgument otherwise, so that devices, pipes and symbolic links are not
// replaced.
absl::Status CheckWeightsFile(const std::string& path);

// Writes the file completely or not at all. Fails like CheckWeightsFile, or with an error
// of the file system.
absl::Status WriteWeightsFile(const CheckpointReader& from, const std::string& path);

}  // namespace syncline
