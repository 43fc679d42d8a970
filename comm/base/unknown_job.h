// What every command says of a job that is not there: which there are.
//
//   return UnknownJob(name, names, JobSet::kRunning);
//   // "no job 'tost' is running; did you mean 'test'? There is also 'bert'"
#pragma once

#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace syncline {

// Of which jobs the names are: all that are known, or those that run.
enum class JobSet { kKnown, kRunning };

// NotFound. Each name is shown safely, and the first ten of them.
absl::Status UnknownJob(std::string_view name, std::span<const std::string_view> names,
                        JobSet set);

}  // namespace syncline
