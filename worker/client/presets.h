// The settings of published methods of local SGD, by name: the servers' outer optimizer,
// and the codecs of pushed changes and published weights. The program does the rest
// (docs/local_sgd.md): it makes the local steps of a round, and then pushes its weights
// at the start of the round minus its present weights. With "demo" it pushes gradients.
//
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "worker/client/session.h"

namespace syncline {

// Sets optimizer, push_codec, publish_codec and preset. Fails with InvalidArgument, which
// names the existing presets, if there is none of this name.
absl::Status ApplyPreset(std::string_view name, SessionOptions& options);

// Fails with InvalidArgument if a preset with rounds was applied and the mode does not
// support rounds of local SGD; asp does if the outer optimizer delays its momentum
// (momentum_every). syncline.torch.LocalSGD makes the same check.
absl::Status CheckRounds(const SessionOptions& options);

// Returns the preset that has these settings; empty if there is none.
std::string_view PresetOf(const SessionOptions& options);

}  // namespace syncline
