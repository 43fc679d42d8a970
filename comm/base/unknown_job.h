// The error of commands about a job that does not exist. It lists those that do.
//
//   return UnknownJob(name, names, JobSet::kRunning);
//   // "no job 'tost' is running; did you mean 'test'? There is also 'bert'"
#pragma once

#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace syncline {

// Which jobs the names are: all known ones, or the running ones.
enum class JobSet { kKnown, kRunning };

// Returns NotFound. Names are shown safely, at most ten.
absl::Status UnknownJob(std::string_view name, std::span<const std::string_view> names,
                        JobSet set);

}  // namespace syncline
