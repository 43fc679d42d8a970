#include "comm/transport/ucx/transport.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/transport/ucx/endpoint.h"
#include "comm/transport/ucx/send.h"

namespace syncline {
namespace {

// Progress() returns after this many rounds even if more arrives, so that timers and
// posted tasks of the loop get their turn.
constexpr int kMaxRounds = 64;

// A borrower that cannot ring our bell (bell.h) still returns loans. While something is
// lent, no sleep is longer than this.
constexpr absl::Duration kLongestSleepOnLoans = absl::Milliseconds(20);

// How often memory of dead lenders is looked for: each may have lent a gigabyte.
constexpr absl::Duration kLookForOrphansEvery = absl::Seconds(1);

// A loop that never sleeps checks only once in this many rounds whether peer processes
// have ended.
constexpr uint32_t kRoundsPerLook = 1024;

std::mt19937_64 RandomlySeeded() {
  std::random_device device;
  std::seed_seq seed = {device(), device(), device(), device()};
  return std::mt19937_64(seed);
}

}  // namespace

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
      also_wakes_(options.also_wakes),
      arena_(options.arena != nullptr ? options.arena : SharedArena::Create({})),
      random_(RandomlySeeded()) {}

absl::Status UcxTransport::Open() {
  SYNCLINE_ASSIGN_OR_RETURN(sleeper_, Sleeper::Create());
  SYNCLINE_ASSIGN_OR_RETURN(bell_, Bell::Create());
  sleeper_->Add(worker_->event_fd());
  sleeper_->Add(bell_->fd());
  if (also_wakes_ >= 0) sleeper_->Add(also_wakes_);
  SYNCLINE_RETURN_IF_ERROR(SetHandler(kUcxCopied, OnCopiedMessage));
  SYNCLINE_RETURN_IF_ERROR(SetHandler(kUcxLent, OnLentMessage));
  SYNCLINE_ASSIGN_OR_RETURN(std::string worker_address, worker_->Address());
  address_ =
      EncodeAddress({place_, static_cast<uint32_t>(getpid()), std::move(worker_address)});
  return absl::OkStatus();
}

absl::Status UcxTransport::SetHandler(UcxMessageId id, ucp_am_recv_callback_t handler) {
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = id;
  param.cb = handler;
  param.arg = this;
  return StatusFromUcx(ucp_worker_set_am_recv_handler(worker_->handle(), &param),
                       "setting a UCX message handler");
}

UcxTransport::~UcxTransport() {
  for (UcxEndpoint* endpoint : endpoints_) {
    Disconnect(*endpoint, absl::CancelledError("transport was closed"));
    endpoint->transport_ = nullptr;
  }
  FinishWithUcx();
  worker_.reset();
  RunCallbacks();  // there is no Progress() after this
}

// Forced closes take some more rounds, although UCX reports them as done at once. In
// addition, UCX 1.13 aborts the process if a worker is destroyed while it fetches. A
// fetch ends when its data has come or its sender's death was noticed. If neither
// happens, the worker is left behind, which does less harm.
void UcxTransport::FinishWithUcx() {
  for (int round = 0; round < kMaxRounds; ++round) ucp_worker_progress(worker_->handle());
  const SteadyClock clock;
  const absl::Duration deadline = 3 * keepalive_;
  while ((fetching_ > 0 || !closing_.empty()) && clock.Now() < deadline) {
    ucp_worker_progress(worker_->handle());
    FreeClosedHandles();
  }
  if (fetching_ == 0) return;
  log_.Warning("left a UCX worker behind", {{"fetching", fetching_}});
  static_cast<void>(worker_.release());
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
  endpoint->is_near_ = peer.place == place_;
  if (endpoint->is_near_) endpoint->neighbour_ = ProcessWatch::Open(peer.process_id);
  if (endpoint->neighbour_ != nullptr) {
    sleeper_->Watch(endpoint->neighbour_->fd(), endpoint.get());
  }
  return endpoint;
}

int UcxTransport::Progress() {
  int events = 0;
  for (int round = 0; round < kMaxRounds; ++round) {
    const int moved = static_cast<int>(ucp_worker_progress(worker_->handle()));
    if (moved == 0) break;
    events += moved;
  }
  if (!lent_.empty()) TakeBackLoans();
  if (++rounds_ % kRoundsPerLook == 0) LookForEnds();
  if (!failed_.empty()) RunFailures();
  if (!closing_.empty()) FreeClosedHandles();
  return events + RunCallbacks();
}

// Callbacks may do anything except destroy the transport. Each queue is therefore read
// from its front every time.
int UcxTransport::RunCallbacks() {
  int ran = 0;
  while (const std::shared_ptr<Arrival> arrival = inbox_.Next()) {
    if (arrival->borrowed.body.owner != nullptr) {
      receiver_.OnBorrowed(arrival->wire.header(), std::move(arrival->borrowed));
    } else {
      receiver_.OnMessage(arrival->wire.header(), std::move(arrival->payload));
    }
    ++ran;
  }
  // Runs only the completions that exist now: a callback that sends may add another one
  // each time.
  for (size_t left = completed_.size(); left > 0; --left, ++ran) {
    const Completion completion = std::move(completed_.front());
    completed_.pop_front();
    if (completion.done) completion.done(completion.status);
  }
  return ran;
}

void UcxTransport::RunFailures() {
  while (!failed_.empty()) {
    UcxEndpoint* endpoint = failed_.back();
    Disconnect(*endpoint, endpoint->failure_);
    const auto on_failure = std::exchange(endpoint->options_.on_failure, nullptr);
    if (on_failure) on_failure(endpoint->failure_);
  }
}

void UcxTransport::Wait(absl::Duration timeout) {
  if (!inbox_.empty() || !completed_.empty() || !failed_.empty()) return;
  for (const std::unique_ptr<UcxSend>& send : lent_) {
    if (!send->lending->RingOnReturn()) return;
  }
  DetachOrphansSometimes();
  if (worker_->Arm() == UcxWorker::Armed::kEventsPending) return;
  if (!lent_.empty()) timeout = std::min(timeout, kLongestSleepOnLoans);
  sleeper_->Sleep(timeout);
  bell_->Hush();
  LookForEnds();
}

// Handles one at a time. The others are reported again until they are disconnected.
void UcxTransport::LookForEnds() {
  void* ended = sleeper_->Ended();
  if (ended != nullptr) Fail(*static_cast<UcxEndpoint*>(ended), "its process ended");
}

// There is no event when a lender's memory is gone, so it is looked for from time to
// time.
void UcxTransport::DetachOrphansSometimes() {
  const absl::Duration now = clock_.Now();
  if (now - looked_for_orphans_at_ < kLookForOrphansEvery) return;
  looked_for_orphans_at_ = now;
  borrower_.DetachOrphans();
}

void UcxTransport::Wake() { sleeper_->Wake(); }

void UcxTransport::OnEndpointError(void* user_data, ucp_ep_h, ucs_status_t status) {
  auto* endpoint = static_cast<UcxEndpoint*>(user_data);
  endpoint->transport_->Fail(*endpoint, ucs_status_string(status));
}

void UcxTransport::Fail(UcxEndpoint& endpoint, absl::string_view why) {
  if (!endpoint.failure_.ok()) return;
  endpoint.failure_ = absl::UnavailableError(absl::StrCat("the peer is gone: ", why));
  failed_.push_back(&endpoint);
}

void UcxTransport::Disconnect(UcxEndpoint& endpoint, const absl::Status& reason) {
  std::erase(failed_, &endpoint);
  AbandonLoans(endpoint, reason);
  if (endpoint.neighbour_ != nullptr) sleeper_->Unwatch(endpoint.neighbour_->fd());
  endpoint.neighbour_ = nullptr;
  if (endpoint.handle_ != nullptr) CloseHandle(std::exchange(endpoint.handle_, nullptr));
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

}  // namespace syncline
