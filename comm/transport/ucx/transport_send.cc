// The sending half of UcxTransport: copies through UCX, and loans.
#include <algorithm>
#include <utility>

#include "comm/transport/ucx/endpoint.h"
#include "comm/transport/ucx/send.h"
#include "comm/transport/ucx/transport.h"

namespace syncline {
namespace {

// Below, two copies through the cache cost less than the borrower's bookkeeping.
constexpr size_t kSmallestLoan = 8192;

// The payload as one run of bytes, when its slices follow each other in memory; else
// empty. All of them must have owners, which alone can keep lent memory from being used
// again.
ByteView AsOneRun(const Payload& payload) {
  if (payload.empty()) return {};
  const std::byte* end = payload.front().data;
  for (const Slice& slice : payload) {
    if (slice.data != end || slice.owner == nullptr) return {};
    end += slice.size;
  }
  return {payload.front().data, end};
}

}  // namespace

void UcxTransport::SendOn(UcxEndpoint& endpoint, std::unique_ptr<UcxSend> send) {
  if (endpoint.handle_ == nullptr || !endpoint.failure_.ok()) {
    return Completed(std::move(send->done), endpoint.failure_);
  }
  send->transport = this;
  send->endpoint = &endpoint;
  send->lending = LendingFor(endpoint, send->payload);

  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = OnSent;
  param.user_data = send.get();
  UcxMessageId id = kUcxCopied;
  const void* data = nullptr;
  size_t count = 0;
  if (send->lending.has_value()) {
    id = kUcxLent;
    data = &send->lending->loan;
    count = sizeof(Loan);
  } else if (send->payload.size() == 1) {
    data = send->payload[0].data;
    count = send->payload[0].size;
  } else if (send->payload.size() > 1) {
    for (const Slice& slice : send->payload) {
      send->pieces.push_back({const_cast<std::byte*>(slice.data), slice.size});
    }
    data = send->pieces.data();
    count = send->pieces.size();
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = ucp_dt_make_iov();
  }
  const ByteView wire = send->wire.bytes();
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint.handle_, id, wire.data(),
                                                   wire.size(), data, count, &param);
  if (UCS_PTR_IS_PTR(request)) {
    send.release();  // OnSent takes it back
  } else {
    Sent(std::move(send), StatusFromUcx(UCS_PTR_STATUS(request), "sending to a peer"));
  }
}

std::optional<Lending> UcxTransport::LendingFor(const UcxEndpoint& endpoint,
                                                const Payload& payload) {
  if (arena_ == nullptr || endpoint.neighbour_ == nullptr) return std::nullopt;
  const ByteView run = AsOneRun(payload);
  if (run.size() < kSmallestLoan) return std::nullopt;
  return arena_->Lend(run);
}

void UcxTransport::OnSent(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<UcxSend> send(static_cast<UcxSend*>(user_data));
  UcxTransport* transport = send->transport;
  transport->Sent(std::move(send), StatusFromUcx(status, "sending to a peer"));
  ucp_request_free(request);
}

void UcxTransport::Sent(std::unique_ptr<UcxSend> send, absl::Status status) {
  if (!send->lending.has_value())
    return Completed(std::move(send->done), std::move(status));
  if (!status.ok()) {
    send->lending->Reclaim();  // UCX never let go of the message: the peer does not know
    return Completed(std::move(send->done), std::move(status));
  }
  const bool connected =
      endpoints_.contains(send->endpoint) && send->endpoint->handle_ != nullptr;
  if (!connected)
    return Abandon(*send, nullptr, absl::CancelledError("endpoint was closed"));
  lent_.push_back(std::move(send));
}

void UcxTransport::Completed(SendDone done, absl::Status status) {
  completed_.push_back({std::move(done), std::move(status)});
}

void UcxTransport::TakeBackLoans() {
  std::erase_if(lent_, [this](const std::unique_ptr<UcxSend>& send) {
    if (!send->lending->Returned()) return false;
    Completed(std::move(send->done), absl::OkStatus());
    return true;
  });
}

void UcxTransport::AbandonLoans(const UcxEndpoint& endpoint, const absl::Status& status) {
  std::erase_if(lent_, [&](const std::unique_ptr<UcxSend>& send) {
    if (send->endpoint != &endpoint) return false;
    Abandon(*send, endpoint.neighbour_, status);
    return true;
  });
}

// The caller hears at once; the memory stays reserved while the peer may be reading it.
void UcxTransport::Abandon(UcxSend& send, std::shared_ptr<const ProcessWatch> peer,
                           const absl::Status& status) {
  arena_->KeepUntilReturned(
      *send.lending, std::move(send.payload),
      [peer = std::move(peer)] { return peer != nullptr && peer->Ended(); });
  Completed(std::move(send.done), status);
}

}  // namespace syncline
