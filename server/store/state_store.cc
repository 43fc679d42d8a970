#include "server/store/state_store.h"

#include "absl/strings/str_cat.h"

namespace syncline {

absl::Status VersionConflict(std::string_view key, int64_t expected_version,
                             int64_t found_version) {
  return absl::AbortedError(
      absl::StrCat("state '", std::string(key), "' has version ", found_version, ", not ",
                   expected_version, ": another coordinator changed it; load it again"));
}

absl::Status CheckValueSize(std::string_view key, std::string_view value) {
  if (value.size() <= kMaxStateValueBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("state '", std::string(key), "' has ", value.size(),
                   " bytes; at most ", kMaxStateValueBytes, " are stored under one key"));
}

}  // namespace syncline
