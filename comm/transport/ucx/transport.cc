#include "comm/transport/ucx/transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/check.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/transport/ucx/address.h"
#include "comm/transport/ucx/endpoint.h"
#include "comm/transport/ucx/send.h"

namespace syncline {
namespace {

// Progress() returns after this many rounds even when more arrives, so that timers and
// posted work of the loop get their turn.
constexpr int kMaxRounds = 64;

std::mt19937_64 RandomlySeeded() {
  std::random_device device;
  std::seed_seq seed = {device(), device(), device(), device()};
  return std::mt19937_64(seed);
}

}  // namespace

// A payload that UCX is fetching.
struct UcxFetch {
  UcxTransport* transport;
  std::shared_ptr<Arrival> arrival;
};

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Create(
    std::unique_ptr<UcxWorker> worker, Receiver& receiver, const UcxOptions& options) {
  auto transport = std::unique_ptr<UcxTransport>(
      new UcxTransport(std::move(worker), receiver, options));
  SYNCLINE_RETURN_IF_ERROR(transport->Open());
  return transport;
}

UcxTransport::UcxTransport(std::unique_ptr<UcxWorker> worker, Receiver& receiver,
                           const UcxOptions& options)
    : worker_(std::move(worker)),
      receiver_(receiver),
      log_(options.log),
      keepalive_(options.keepalive),
      random_(RandomlySeeded()) {}

absl::Status UcxTransport::Open() {
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0)
    return absl::ResourceExhaustedError("no descriptor left for an eventfd");

  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kUcxCopied;
  handler.cb = OnActiveMessage;
  handler.arg = this;
  SYNCLINE_RETURN_IF_ERROR(
      StatusFromUcx(ucp_worker_set_am_recv_handler(worker_->handle(), &handler),
                    "setting the UCX message handler"));

  SYNCLINE_ASSIGN_OR_RETURN(std::string worker_address, worker_->Address());
  address_ = EncodeAddress(
      {PlaceOfThisProcess(), static_cast<uint32_t>(getpid()), std::move(worker_address)});
  return absl::OkStatus();
}

UcxTransport::~UcxTransport() {
  for (UcxEndpoint* endpoint : endpoints_) {
    if (endpoint->handle_ != nullptr) CloseHandle(endpoint->handle_);
    endpoint->handle_ = nullptr;
    endpoint->transport_ = nullptr;
  }
  FinishWithUcx();
  worker_.reset();
  RunCallbacks();  // nobody calls Progress() after this
  if (wake_fd_ >= 0) close(wake_fd_);
}

// Forced closes finish over the next rounds, though UCX calls them done at once. And
// UCX 1.13 aborts the process when a worker goes that is still fetching: a fetch ends
// when its data came or its sender's death was noticed; for the case that neither
// happens, a worker left behind is the smaller evil.
void UcxTransport::FinishWithUcx() {
  for (int round = 0; round < kMaxRounds; ++round) ucp_worker_progress(worker_->handle());
  const absl::Time deadline = absl::Now() + 3 * keepalive_;
  while ((fetching_ > 0 || !closing_.empty()) && absl::Now() < deadline) {
    ucp_worker_progress(worker_->handle());
    FreeClosedHandles();
  }
  if (fetching_ == 0) return;
  log_.Warning("left a UCX worker behind", {{"fetching", fetching_}});
  worker_.release();
}

absl::StatusOr<std::unique_ptr<Endpoint>> UcxTransport::Connect(
    const std::string& address, ConnectOptions options) {
  SYNCLINE_ASSIGN_OR_RETURN(const UcxAddress peer, ParseAddress(address));
  auto endpoint = std::make_unique<UcxEndpoint>(*this, std::move(options), random_());
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = OnEndpointError;
  params.err_handler.arg = endpoint.get();
  SYNCLINE_RETURN_IF_ERROR(
      StatusFromUcx(ucp_ep_create(worker_->handle(), &params, &endpoint->handle_),
                    "connecting to a peer (does it share a transport with this host?)"));
  return endpoint;
}

int UcxTransport::Progress() {
  int events = 0;
  for (int round = 0; round < kMaxRounds; ++round) {
    const int moved = static_cast<int>(ucp_worker_progress(worker_->handle()));
    if (moved == 0) break;
    events += moved;
  }
  if (!failed_.empty()) RunFailures();
  if (!closing_.empty()) FreeClosedHandles();
  return events + RunCallbacks();
}

// User code may do anything in here but destroy the transport, so every queue is read
// from the front each time anew.
int UcxTransport::RunCallbacks() {
  int ran = 0;
  while (const std::shared_ptr<Arrival> arrival = inbox_.Next()) {
    receiver_.OnMessage(arrival->wire.header(), std::move(arrival->payload));
    ++ran;
  }
  // Only those of now: a callback that sends again may complete again at once, for ever.
  for (size_t left = completed_.size(); left > 0; --left, ++ran) {
    const std::unique_ptr<UcxSend> send = std::move(completed_.front());
    completed_.pop_front();
    if (send->done) send->done(send->status);
  }
  return ran;
}

void UcxTransport::RunFailures() {
  while (!failed_.empty()) {
    UcxEndpoint* endpoint = failed_.back();
    failed_.pop_back();
    if (endpoint->handle_ != nullptr) {
      CloseHandle(std::exchange(endpoint->handle_, nullptr));
    }
    const auto on_failure = std::exchange(endpoint->options_.on_failure, nullptr);
    if (on_failure) on_failure(endpoint->failure_);
  }
}

void UcxTransport::Wait(absl::Duration timeout) {
  if (!inbox_.empty() || !completed_.empty() || !failed_.empty()) return;
  if (worker_->Arm() == UcxWorker::Armed::kEventsPending) return;
  pollfd descriptors[] = {{worker_->event_fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  const timespec limit = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  ppoll(descriptors, 2, timeout == absl::InfiniteDuration() ? nullptr : &limit, nullptr);
  uint64_t wakes;
  if (descriptors[1].revents != 0) (void)!read(wake_fd_, &wakes, sizeof(wakes));
}

void UcxTransport::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof(one));  // fails only when it is pending already
}

void UcxTransport::SendOn(UcxEndpoint& endpoint, std::unique_ptr<UcxSend> send) {
  if (endpoint.handle_ == nullptr || !endpoint.failure_.ok()) {
    return Completed(std::move(send), endpoint.failure_);
  }
  send->transport = this;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = OnSent;
  param.user_data = send.get();

  const void* data = nullptr;
  size_t count = 0;
  if (send->payload.size() == 1) {
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
  const ucs_status_ptr_t request = ucp_am_send_nbx(
      endpoint.handle_, kUcxCopied, wire.data(), wire.size(), data, count, &param);
  if (UCS_PTR_IS_PTR(request)) {
    send.release();  // OnSent takes it back
  } else {
    Completed(std::move(send),
              StatusFromUcx(UCS_PTR_STATUS(request), "sending to a peer"));
  }
}

void UcxTransport::OnSent(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<UcxSend> send(static_cast<UcxSend*>(user_data));
  UcxTransport* transport = send->transport;
  transport->Completed(std::move(send), StatusFromUcx(status, "sending to a peer"));
  ucp_request_free(request);
}

void UcxTransport::Completed(std::unique_ptr<UcxSend> send, absl::Status status) {
  send->payload.clear();
  send->status = std::move(status);
  completed_.push_back(std::move(send));
}

void UcxTransport::OnEndpointError(void* user_data, ucp_ep_h, ucs_status_t status) {
  auto* endpoint = static_cast<UcxEndpoint*>(user_data);
  if (!endpoint->failure_.ok()) return;
  endpoint->failure_ = absl::UnavailableError(
      absl::StrCat("the peer is gone: ", ucs_status_string(status)));
  endpoint->transport_->failed_.push_back(endpoint);
}

void UcxTransport::Forget(UcxEndpoint& endpoint) {
  if (endpoint.handle_ != nullptr) CloseHandle(endpoint.handle_);
  endpoints_.erase(&endpoint);
  std::erase(failed_, &endpoint);
}

void UcxTransport::CloseHandle(ucp_ep_h handle) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(handle, &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void UcxTransport::FreeClosedHandles() {
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

ucs_status_t UcxTransport::OnActiveMessage(void* self, const void* header,
                                           size_t header_bytes, void* data, size_t bytes,
                                           const ucp_am_recv_param_t* param) {
  const ByteView wire(static_cast<const std::byte*>(header), header_bytes);
  return static_cast<UcxTransport*>(self)->Land(wire, data, bytes, param->recv_attr);
}

// Whatever is wrong with a message, UCX hears OK, which drops it and completes the send:
// an error would take the sender's endpoint down for a message that was merely not
// wanted.
ucs_status_t UcxTransport::Land(ByteView wire, void* data, size_t bytes,
                                uint64_t attributes) {
  if (!WireHeader::IsPlausible(wire)) {
    Refused(
        absl::InvalidArgumentError(absl::StrCat("header of ", wire.size(), " bytes")));
    return UCS_OK;
  }
  auto arrival = std::make_shared<Arrival>(wire);
  if (!inbox_.Announce(arrival)) {
    Refused(absl::InvalidArgumentError("its number on the link is impossible"));
    return UCS_OK;
  }
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

// A hostile peer must not fill the log: the 1st, 2nd, 4th, 8th... are told.
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
    fetch.release();  // OnFetched takes it back
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
