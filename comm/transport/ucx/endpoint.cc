#include "comm/transport/ucx/endpoint.h"

#include <memory>
#include <utility>

#include "absl/strings/str_join.h"
#include "comm/base/check.h"
#include "comm/transport/ucx/lanes.h"
#include "comm/transport/ucx/send.h"
#include "comm/transport/ucx/transport.h"

namespace syncline {

UcxEndpoint::UcxEndpoint(UcxTransport& transport, ConnectOptions options, uint64_t link)
    : transport_(&transport), options_(std::move(options)), link_(link) {
  transport.endpoints_.insert(this);
}

UcxEndpoint::~UcxEndpoint() {
  if (transport_ == nullptr) return;
  transport_->Disconnect(*this, absl::CancelledError("endpoint was closed"));
  transport_->endpoints_.erase(this);
}

void UcxEndpoint::Send(ByteView header, Payload payload, SendDone done) {
  SYNCLINE_CHECK(header.size() <= kMessageHeaderBytes);
  SYNCLINE_CHECK(transport_ != nullptr);
  const WireHeader wire({link_, next_number_++}, header);
  const uint64_t bytes = header.size() + PayloadBytes(payload);
  state_->accepted_bytes += bytes;
  auto counted = [state = state_, bytes,
                  done = std::move(done)](const absl::Status& status) {
    state->gone_bytes += bytes;
    if (done) done(status);
  };
  transport_->SendOn(
      *this, std::make_unique<UcxSend>(wire, std::move(payload), std::move(counted)));
}

bool UcxEndpoint::IsLocal() const { return handle_ != nullptr && is_near_; }

std::string UcxEndpoint::Describe() const {
  if (handle_ == nullptr) return "closed";
  return absl::StrJoin(LanesOf(handle_), " ");
}

}  // namespace syncline
