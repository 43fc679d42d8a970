// Formats the checkpoints of a directory for `syncline checkpoint`. Names come from files
// of other users, so their control characters never reach a terminal.
#pragma once

#include <span>
#include <string>

#include "absl/time/time.h"
#include "server/checkpoint/catalog.h"

namespace syncline {

// Returns a line of at most 80 columns for each, in the given order. Times are in `zone`.
std::string CheckpointTable(std::span<const CheckpointInfo> all, absl::TimeZone zone);

// Returns the same as a JSON array, in ASCII.
std::string CheckpointJson(std::span<const CheckpointInfo> all);

// Returns the manifest's fields as JSON, in ASCII.
std::string ManifestJson(const Manifest& manifest);

// `about`: the description of the manifest's checkpoint.
std::string ManifestTable(const Manifest& manifest, const CheckpointInfo& about,
                          absl::TimeZone zone);

}  // namespace syncline
