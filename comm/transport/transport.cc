#include "comm/transport/transport.h"

#include <utility>

#include "comm/base/check.h"

namespace syncline {

const char* RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kHandshake:
      return "handshake";
    case Refusal::kIdentity:
      return "identity";
    case Refusal::kTimeout:
      return "timeout";
    case Refusal::kCrowded:
      return "crowded";
    case Refusal::kMalformed:
      return "malformed";
    case Refusal::kUnread:
      return "unread";
  }
  return "unknown";
}

void Receiver::OnBorrowed(ByteView header, Landed payload) {
  absl::StatusOr<Buffer> landing = Allocate(header, payload.size());
  if (!landing.ok()) return;
  SYNCLINE_CHECK(landing->size() >= payload.size());
  payload.CopyTo(landing->data());
  payload = {};
  OnMessage(header, *std::move(landing));
}

}  // namespace syncline
