// How a member is refused: with a status that can be shown whatever it had sent.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

// What a refused member sent may be part of the message, and long.
inline constexpr size_t kMaxRefusalBytes = 1000;

inline void RefuseMember(ConnectionId connection, const absl::Status& status,
                         CoordinatorOutputs& outputs) {
  const std::string why =
      Printable(std::string_view(status.message().data(), status.message().size()),
                kMaxRefusalBytes);
  outputs.push_back(
      LogReason{absl::StrCat("refused: ", why), LogReason::Level::kWarning});
  outputs.push_back(CloseMember{
      connection, WithFailure(absl::Status(status.code(), why), FailureOf(status))});
}

}  // namespace syncline
