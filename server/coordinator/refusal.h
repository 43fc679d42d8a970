// Refuses a member, with a status that is safe to show whatever the member had sent.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "server/coordinator/outbox.h"

namespace syncline {

// Limit on the message of the status, which may quote what the member sent.
inline constexpr size_t kMaxRefusalBytes = 1000;

inline void RefuseMember(ConnectionId connection, const absl::Status& status,
                         Outbox& outbox) {
  const std::string why =
      Printable(std::string_view(status.message().data(), status.message().size()),
                kMaxRefusalBytes);
  outbox.Log(absl::StrCat("refused: ", why), LogReason::Level::kWarning);
  outbox.Close(connection,
               WithFailure(absl::Status(status.code(), why), FailureOf(status)));
}

}  // namespace syncline
