// How `syncline checkpoint` shows what lies in a directory. Names come from files that
// others wrote: no control character of theirs gets to a terminal.
#pragma once

#include <span>
#include <string>

#include "absl/time/time.h"
#include "server/checkpoint/catalog.h"

namespace syncline {

// A line for each in at most 80 columns, in the order given. Times are shown in `zone`.
std::string CheckpointTable(std::span<const CheckpointInfo> all, absl::TimeZone zone);

// The same as a JSON array, in ASCII.
std::string CheckpointJson(std::span<const CheckpointInfo> all);

// Its fields, in ASCII.
std::string ManifestJson(const Manifest& manifest);

// `about`: that of the manifest's checkpoint.
std::string ManifestTable(const Manifest& manifest, const CheckpointInfo& about,
                          absl::TimeZone zone);

}  // namespace syncline
