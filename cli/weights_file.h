// The file that --out names: the weights of a checkpoint as safetensors.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/checkpoint/reader.h"

namespace syncline {

// InvalidArgument unless it may be written: a regular file, or none yet, in a directory.
// Devices, pipes and symbolic links stay what they are.
absl::Status CheckWeightsFile(const std::string& path);

// Complete, or not there. CheckWeightsFile's errors, and those of the file system.
absl::Status WriteWeightsFile(const CheckpointReader& from, const std::string& path);

}  // namespace syncline
