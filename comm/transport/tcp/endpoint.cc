// The endpoint of a connection (TcpEndpoint in transport.h).
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/limits.h"
#include "comm/transport/tcp/transport.h"

namespace syncline {

TcpEndpoint::TcpEndpoint(TcpLoopTransport& transport,
                         std::shared_ptr<TcpConnection> connection)
    : transport_(&transport),
      security_(transport.options_.security),
      connection_(std::move(connection)) {
  transport.endpoints_.insert(this);
}

TcpEndpoint::~TcpEndpoint() {
  if (transport_ == nullptr) return;
  transport_->endpoints_.erase(this);
  connection_->options.on_failure = nullptr;
  transport_->Close(*connection_, absl::CancelledError("endpoint was closed"));
}

void TcpEndpoint::SendAs(const Traffic& traffic, ByteView header, Payload payload,
                         SendDone done) {
  SYNCLINE_CHECK(header.size() <= kMessageHeaderBytes);
  SYNCLINE_CHECK(transport_ != nullptr);
  if (connection_->phase() == TcpConnection::Phase::kClosed) {
    return transport_->Complete(std::move(done), connection_->failure);
  }
  if (PayloadBytes(payload) > kMaxMessagePayloadBytes) {
    return transport_->Complete(std::move(done),
                                absl::InvalidArgumentError(absl::StrCat(
                                    "payload of ", PayloadBytes(payload), " bytes")));
  }
  connection_->Enqueue(traffic, {header, std::move(payload), std::move(done)},
                       transport_->clock_.Now());
  transport_->MarkDirty(connection_);
}

bool TcpEndpoint::IsIntact() const { return security_ == TcpSecurity::kTls; }

std::string TcpEndpoint::Describe() const {
  return absl::StrCat("tcp/", TcpSecurityName(security_));
}

}  // namespace syncline
