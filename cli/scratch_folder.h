// A new folder for the temporary files of one command.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

// Returns the path of a new, empty folder, which only this user can read. It is in TMPDIR,
// or in /tmp; its name is `prefix` and six random characters. The caller removes it. Fails
// with PermissionDenied, and says what to do.
absl::StatusOr<std::string> MakeScratchFolder(std::string_view prefix);

}  // namespace syncline
