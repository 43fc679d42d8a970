// The settings of published methods of local SGD by their names: which outer optimizer the
// servers run, and how changes and weights travel. How many local steps a round has, and
// that what is pushed is where the worker came from minus where it is, is the program's part
// (docs/local_sgd.md).
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "worker/client/session.h"

namespace syncline {

// Sets optimizer, push_codec, publish_codec and preset. InvalidArgument names the presets there are.
absl::Status ApplyPreset(std::string_view name, SessionOptions& options);

// InvalidArgument where a preset was applied and the mode has no rounds, as
// syncline.torch.LocalSGD says.
absl::Status CheckRounds(const SessionOptions& options);

// The preset whose settings these are; empty if there is none.
std::string_view PresetOf(const SessionOptions& options);

}  // namespace syncline
