// Options of a session by name, as strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "worker/client/session.h"

namespace syncline::c {

// Fails with InvalidArgument, which names the key or the value, and what is allowed.
absl::Status SetOption(SessionOptions& options, std::string_view key,
                       const std::string& value);

// Returns the value in the form that SetOption accepts; nullopt for an unknown key.
std::optional<std::string> GetOption(const SessionOptions& options, std::string_view key);

}  // namespace syncline::c
