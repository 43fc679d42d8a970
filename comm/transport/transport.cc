#include "comm/transport/transport.h"

#include <cstring>
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
  }
  return "unknown";
}

void Receiver::OnBorrowed(ByteView header, Slice payload) {
  absl::StatusOr<Buffer> landing = Allocate(header, payload.size);
  if (!landing.ok()) return;
  SYNCLINE_CHECK(landing->size() >= payload.size);
  if (payload.size > 0) std::memcpy(landing->data(), payload.data, payload.size);
  payload.owner.reset();
  OnMessage(header, *std::move(landing));
}

}  // namespace syncline
