#include "comm/job/checkpoint_name.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/base/printable.h"

namespace syncline {

std::string CheckpointName::ToString() const {
  return absl::StrCat("run", run, "-step", step);
}

std::optional<CheckpointName> CheckpointName::Parse(const std::string& name) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(name, absl::MaxSplits("-step", 1));
  CheckpointName parsed;
  const bool ok = name.starts_with("run") &&
                  absl::SimpleAtoi(parts.first.substr(3), &parsed.run) &&
                  absl::SimpleAtoi(parts.second, &parsed.step);
  if (!ok || parsed.ToString() != name) return std::nullopt;
  return parsed;
}

absl::Status CheckResume(const std::string& resume) {
  if (resume == "auto" || resume == "latest" || resume == "never" ||
      CheckpointName::Parse(resume)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "resume is '", Printable(resume),
      "'; allowed are auto, latest, never, and the name of a checkpoint such "
      "as run1-step500"));
}

}  // namespace syncline
