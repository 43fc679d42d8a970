// The sending half of UcxTransport: copies through UCX, and loans.
#include <cstring>
#include <string>
#include <utility>

#include "comm/base/limits.h"
#include "comm/transport/lent_parts.h"
#include "comm/transport/ucx/endpoint.h"
#include "comm/transport/ucx/send.h"
#include "comm/transport/ucx/transport.h"

namespace syncline {
namespace {

// Smaller payloads are cheaper to copy twice through the cache than to lend.
constexpr size_t kSmallestLoan = 8192;

}  // namespace

void UcxTransport::SendOn(UcxEndpoint& endpoint, std::unique_ptr<UcxSend> send) {
  if (endpoint.handle_ == nullptr || !endpoint.failure_.ok()) {
    return Completed(std::move(send->done), endpoint.failure_);
  }
  send->transport = this;
  send->endpoint = &endpoint;
  if (endpoint.neighbour_ != nullptr && PayloadBytes(send->payload) >= kSmallestLoan) {
    Lend(*send);
  }
  const ByteView wire = send->wire.bytes();
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = OnSent;
  param.user_data = send.get();
  ucs_status_ptr_t request = nullptr;
  if (send->lending.has_value()) {
    // Eager: the receiver must find the loan in the message, even if the user's
    // UCX_RNDV_THRESH is small.
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    request =
        ucp_am_send_nbx(endpoint.handle_, kUcxLent, wire.data(), wire.size(),
                        send->loan_and_head.data(), send->loan_and_head.size(), &param);
  } else {
    for (const Slice& slice : send->payload) {
      if (slice.size == 0) continue;
      send->pieces.push_back({const_cast<std::byte*>(slice.data), slice.size});
    }
    const std::vector<ucp_dt_iov_t>& pieces = send->pieces;
    const bool one = pieces.size() == 1;
    if (pieces.size() > 1) {
      param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
      param.datatype = ucp_dt_make_iov();
    }
    request = ucp_am_send_nbx(endpoint.handle_, kUcxCopied, wire.data(), wire.size(),
                              one ? pieces[0].buffer : pieces.data(),
                              one ? pieces[0].length : pieces.size(), &param);
  }
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(send.release());  // OnSent takes it back
  } else {
    Sent(std::move(send), StatusFromUcx(UCS_PTR_STATUS(request), "sending to a peer"));
  }
}

// Payloads outside the arena are lent too, after one copy. UCX would copy them in pieces
// of 8 KiB, and the two processes would take turns for each piece, which costs context
// switches if there are few cores. Also, a sender that is killed in the middle of a piece
// stops the receiver's queue forever, for all its peers.
void UcxTransport::Lend(UcxSend& send) {
  if (const std::optional<LentParts> parts = PartsToLend(send.payload)) {
    send.lending = arena_->Lend(parts->body, bell_->name());
    if (send.lending.has_value()) return send.Announce(parts->head);
  }
  const size_t bytes = PayloadBytes(send.payload);
  const std::shared_ptr<std::byte> copy =
      bytes <= kMaxMessagePayloadBytes ? arena_->Allocate(bytes) : nullptr;
  if (copy == nullptr) return;
  send.lending = arena_->Lend({copy.get(), bytes}, bell_->name());
  if (!send.lending.has_value()) return;
  std::byte* out = copy.get();
  for (const Slice& slice : send.payload) {
    if (slice.size > 0) std::memcpy(out, slice.data, slice.size);
    out += slice.size;
  }
  send.payload = {Slice{copy.get(), bytes, copy}};
  send.copied = true;
  send.Announce({});
}

void UcxTransport::OnSent(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<UcxSend> send(static_cast<UcxSend*>(user_data));
  UcxTransport* transport = send->transport;
  transport->Sent(std::move(send), StatusFromUcx(status, "sending to a peer"));
  ucp_request_free(request);
}

UcxEndpoint* UcxTransport::EndpointOf(const UcxSend& send) const {
  const bool is_there = endpoints_.contains(send.endpoint) &&
                        send.endpoint->link_ == send.wire.prefix().link &&
                        send.endpoint->handle_ != nullptr;
  return is_there ? send.endpoint : nullptr;
}

void UcxTransport::Sent(std::unique_ptr<UcxSend> send, absl::Status status) {
  UcxEndpoint* const endpoint = EndpointOf(*send);
  // The message's number is used up. The receiver would wait for it forever, and for
  // everything after it.
  if (!status.ok() && endpoint != nullptr) {
    Fail(*endpoint, std::string(status.message()));
  }
  if (!send->lending.has_value())
    return Completed(std::move(send->done), std::move(status));
  if (!status.ok()) {
    // UCX did not send the message, so the peer does not know of the loan.
    send->lending->Reclaim();
    return Completed(std::move(send->done), std::move(status));
  }
  if (send->copied) Completed(std::exchange(send->done, nullptr), absl::OkStatus());
  if (endpoint == nullptr) {
    return Abandon(*send, nullptr, absl::CancelledError("endpoint was closed"));
  }
  lent_.push_back(std::move(send));
}

void UcxTransport::Completed(SendDone done, absl::Status status) {
  completed_.push_back({std::move(done), std::move(status)});
}

void UcxTransport::TakeBackLoans() {
  std::erase_if(lent_, [this](const std::unique_ptr<UcxSend>& send) {
    if (!send->lending->Returned()) return false;
    if (!send->copied) Completed(std::move(send->done), absl::OkStatus());
    return true;
  });
}

void UcxTransport::AbandonLoans(const UcxEndpoint& endpoint, const absl::Status& status) {
  std::erase_if(lent_, [&](const std::unique_ptr<UcxSend>& send) {
    if (send->wire.prefix().link != endpoint.link_) return false;
    Abandon(*send, endpoint.neighbour_, status);
    return true;
  });
}

// Tells the caller at once, and keeps the memory reserved while the peer may still read
// it.
void UcxTransport::Abandon(UcxSend& send, std::shared_ptr<const ProcessWatch> peer,
                           const absl::Status& status) {
  arena_->KeepUntilReturned(
      *send.lending, std::move(send.payload),
      [peer = std::move(peer)] { return peer != nullptr && peer->Ended(); });
  if (!send.copied) Completed(std::move(send.done), status);
}

}  // namespace syncline
