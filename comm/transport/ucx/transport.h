// UcxTransport implements Transport with one UcxWorker. CreateUcxTransport (ucx.h) makes
// it.
//
// UCX calls back from deep inside its own code. These callbacks only record what
// happened, and land payloads. User code runs later, from Progress(), where it may send,
// connect and close as it likes. The only exception is Receiver::Allocate, whose result
// UCX needs at once.
//
// Thread safety: see comm/transport/transport.h.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/transport/shared_arena.h"
#include "comm/transport/transport.h"
#include "comm/transport/ucx/address.h"
#include "comm/transport/ucx/inbox.h"
#include "comm/transport/ucx/process_watch.h"
#include "comm/transport/ucx/sleeper.h"
#include "comm/transport/ucx/worker.h"

namespace syncline {

class UcxEndpoint;
struct UcxSend;

class UcxTransport : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(
      std::unique_ptr<UcxWorker> worker, Receiver& receiver, const UcxOptions& options);
  ~UcxTransport() override;

  const std::string& address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const std::string& address,
                                                    ConnectOptions options) override;
  int Progress() override;
  void Wait(absl::Duration timeout) override;
  void Wake() override;

 private:
  friend class UcxEndpoint;

  UcxTransport(std::unique_ptr<UcxWorker> worker, Receiver& receiver,
               const UcxOptions& options);
  absl::Status Open();

  // Callbacks of UCX.
  static ucs_status_t OnLentMessage(void* self, const void* header, size_t header_bytes,
                                    void* data, size_t bytes,
                                    const ucp_am_recv_param_t* param);
  static ucs_status_t OnCopiedMessage(void* self, const void* header, size_t header_bytes,
                                      void* data, size_t bytes,
                                      const ucp_am_recv_param_t* param);
  static void OnFetched(void* request, ucs_status_t status, size_t bytes, void* fetch);
  static void OnSent(void* request, ucs_status_t status, void* send);
  static void OnEndpointError(void* endpoint, ucp_ep_h handle, ucs_status_t status);

  // Receiving. Announce returns null if the message is refused.
  std::shared_ptr<Arrival> Announce(ByteView wire);
  void Borrow(ByteView wire, const Loan& loan, ByteView head);
  ucs_status_t Land(ByteView wire, void* data, size_t bytes, uint64_t attributes);
  absl::StatusOr<Buffer> LandingFor(ByteView header, size_t bytes);
  ucs_status_t Fetch(std::shared_ptr<Arrival> arrival, void* descriptor, size_t bytes);
  void Fetched(Arrival& arrival, ucs_status_t status);
  void Settle(Arrival& arrival, Arrival::State state);
  void Refused(const absl::Status& reason);

  // Sending.
  void SendOn(UcxEndpoint& endpoint, std::unique_ptr<UcxSend> send);
  void Lend(UcxSend& send);
  void Sent(std::unique_ptr<UcxSend> send, absl::Status status);
  // Returns null if the endpoint is closed. The address alone would not be enough: by now
  // another endpoint may have it.
  UcxEndpoint* EndpointOf(const UcxSend& send) const;
  void Completed(SendDone done, absl::Status status);
  void TakeBackLoans();
  void Abandon(UcxSend& send, std::shared_ptr<const ProcessWatch> peer,
               const absl::Status& status);
  void AbandonLoans(const UcxEndpoint& endpoint, const absl::Status& status);

  absl::Status SetHandler(UcxMessageId id, ucp_am_recv_callback_t handler);
  void Fail(UcxEndpoint& endpoint, absl::string_view why);
  // Closes `endpoint` in UCX and in the sleeper.
  void Disconnect(UcxEndpoint& endpoint, const absl::Status& reason);
  void CloseHandle(ucp_ep_h handle);
  void FreeClosedHandles();
  void FinishWithUcx();
  void DetachOrphansSometimes();
  void LookForEnds();
  int RunCallbacks();
  void RunFailures();

  std::unique_ptr<UcxWorker> worker_;
  Receiver& receiver_;
  Logger log_;
  const absl::Duration keepalive_;
  const int also_wakes_;
  std::string address_;
  std::shared_ptr<SharedArena> arena_;
  SharedBorrower borrower_;
  std::unique_ptr<Sleeper> sleeper_;
  std::unique_ptr<Bell> bell_;  // rung when a loan is returned while this side sleeps
  const uint64_t place_ = PlaceOfThisProcess();
  std::mt19937_64 random_;

  Inbox inbox_;
  struct Completion {
    SendDone done;
    absl::Status status;
  };
  std::deque<Completion> completed_;
  // Loans that the peer has not returned yet.
  std::vector<std::unique_ptr<UcxSend>> lent_;
  std::set<UcxEndpoint*> endpoints_;
  std::vector<UcxEndpoint*> failed_;  // their on_failure must still be called
  std::vector<void*> closing_;        // UCX's requests to close handles
  const SteadyClock clock_;
  absl::Duration looked_for_orphans_at_;
  uint32_t rounds_ = 0;
  int fetching_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace syncline
