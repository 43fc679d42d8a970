// The receiving half of UcxTransport: lands and fetches copied payloads, and borrows lent
// ones.
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/limits.h"
#include "comm/transport/lent_parts.h"
#include "comm/transport/ucx/transport.h"

namespace syncline {

// A payload that UCX is fetching.
struct UcxFetch {
  UcxTransport* transport;
  std::shared_ptr<Arrival> arrival;
};

ucs_status_t UcxTransport::OnCopiedMessage(void* self, const void* header,
                                           size_t header_bytes, void* data, size_t bytes,
                                           const ucp_am_recv_param_t* param) {
  const ByteView wire(static_cast<const std::byte*>(header), header_bytes);
  return static_cast<UcxTransport*>(self)->Land(wire, data, bytes, param->recv_attr);
}

ucs_status_t UcxTransport::OnLentMessage(void* self, const void* header,
                                         size_t header_bytes, void* data, size_t bytes,
                                         const ucp_am_recv_param_t* param) {
  auto* transport = static_cast<UcxTransport*>(self);
  const ByteView wire(static_cast<const std::byte*>(header), header_bytes);
  if (bytes < sizeof(Loan) || bytes > sizeof(Loan) + kMaxLentHeadBytes ||
      (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    transport->Refused(
        absl::InvalidArgumentError(absl::StrCat("loan of ", bytes, " bytes")));
    return UCS_OK;
  }
  Loan loan;
  std::memcpy(&loan, data, sizeof(loan));
  const auto* const head = static_cast<const std::byte*>(data) + sizeof(loan);
  transport->Borrow(wire, loan, {head, bytes - sizeof(loan)});
  return UCS_OK;
}

std::shared_ptr<Arrival> UcxTransport::Announce(ByteView wire) {
  if (!WireHeader::IsPlausible(wire)) {
    Refused(
        absl::InvalidArgumentError(absl::StrCat("header of ", wire.size(), " bytes")));
    return nullptr;
  }
  auto arrival = std::make_shared<Arrival>(wire);
  if (!inbox_.Announce(arrival)) {
    Refused(absl::InvalidArgumentError("its number on the link is impossible"));
    return nullptr;
  }
  return arrival;
}

void UcxTransport::Borrow(ByteView wire, const Loan& loan, ByteView head) {
  const std::shared_ptr<Arrival> arrival = Announce(wire);
  if (arrival == nullptr) return;
  absl::StatusOr<Slice> borrowed =
      loan.bytes <= kMaxMessagePayloadBytes - head.size()
          ? borrower_.Borrow(loan)
          : absl::ResourceExhaustedError(absl::StrCat("loan of ", loan.bytes, " bytes"));
  if (!borrowed.ok()) {
    Refused(borrowed.status());
    return Settle(*arrival, Arrival::State::kDropped);
  }
  arrival->borrowed = {Slice::Of(Buffer::CopyOf(head)), *std::move(borrowed)};
  Settle(*arrival, Arrival::State::kWhole);
}

// Returns OK to UCX even if the message is refused: UCX then drops it and completes the
// send. An error would close the sender's endpoint because of a single refused message.
ucs_status_t UcxTransport::Land(ByteView wire, void* data, size_t bytes,
                                uint64_t attributes) {
  std::shared_ptr<Arrival> arrival = Announce(wire);
  if (arrival == nullptr) return UCS_OK;
  absl::StatusOr<Buffer> landing = LandingFor(arrival->wire.header(), bytes);
  if (!landing.ok()) {
    Refused(landing.status());
    Settle(*arrival, Arrival::State::kDropped);
    return UCS_OK;
  }
  arrival->payload = *std::move(landing);
  if (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV)
    return Fetch(std::move(arrival), data, bytes);
  if (bytes > 0) std::memcpy(arrival->payload.data(), data, bytes);
  Settle(*arrival, Arrival::State::kWhole);
  return UCS_OK;
}

absl::StatusOr<Buffer> UcxTransport::LandingFor(ByteView header, size_t bytes) {
  if (bytes > kMaxMessagePayloadBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("payload of ", bytes, " bytes, limit ", kMaxMessagePayloadBytes));
  }
  absl::StatusOr<Buffer> landing = receiver_.Allocate(header, bytes);
  SYNCLINE_CHECK(!landing.ok() || landing->size() >= bytes);
  return landing;
}

void UcxTransport::Settle(Arrival& arrival, Arrival::State state) {
  arrival.state = state;
  inbox_.Settle(arrival);
}

// Logs only the 1st, 2nd, 4th, 8th... refusal, so that a hostile peer cannot fill the
// log.
void UcxTransport::Refused(const absl::Status& reason) {
  if (!std::has_single_bit(++refused_)) return;
  log_.Warning("message refused", {{"reason", reason.ToString()}, {"refused", refused_}});
}

ucs_status_t UcxTransport::Fetch(std::shared_ptr<Arrival> arrival, void* descriptor,
                                 size_t bytes) {
  std::byte* landing = arrival->payload.data();
  auto fetch = std::make_unique<UcxFetch>(UcxFetch{this, std::move(arrival)});
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = OnFetched;
  param.user_data = fetch.get();
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->handle(), descriptor, landing, bytes, &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(fetch.release());  // OnFetched takes it back
    ++fetching_;
    return UCS_INPROGRESS;
  }
  Fetched(*fetch->arrival, UCS_PTR_STATUS(request));
  return UCS_OK;
}

void UcxTransport::OnFetched(void* request, ucs_status_t status, size_t,
                             void* user_data) {
  const std::unique_ptr<UcxFetch> fetch(static_cast<UcxFetch*>(user_data));
  --fetch->transport->fetching_;
  fetch->transport->Fetched(*fetch->arrival, status);
  ucp_request_free(request);
}

void UcxTransport::Fetched(Arrival& arrival, ucs_status_t status) {
  if (status != UCS_OK) Refused(StatusFromUcx(status, "fetching a payload"));
  Settle(arrival, status == UCS_OK ? Arrival::State::kWhole : Arrival::State::kDropped);
}

}  // namespace syncline
