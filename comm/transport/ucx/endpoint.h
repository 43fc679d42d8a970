// One UCX endpoint. It may outlive its transport, and is closed then.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "comm/transport/transport.h"
#include "comm/transport/ucx/process_watch.h"

namespace syncline {

class UcxTransport;

class UcxEndpoint : public Endpoint {
 public:
  UcxEndpoint(UcxTransport& transport, ConnectOptions options, uint64_t link);
  ~UcxEndpoint() override;

  void Send(ByteView header, Payload payload, SendDone done) override;
  // Counts what UCX has completed, by whole messages. What the kernel still holds is
  // unknown.
  SendState send_state() const override { return *state_; }
  bool IsLocal() const override;
  std::string Describe() const override;

 private:
  friend class UcxTransport;

  UcxTransport* transport_;  // null once the transport is gone
  ConnectOptions options_;
  const uint64_t link_;
  uint64_t next_number_ = 0;
  // Shared with the sends under way, which may outlive the endpoint.
  const std::shared_ptr<SendState> state_ = std::make_shared<SendState>();
  ucp_ep_h handle_ = nullptr;  // null once closed or failed
  absl::Status failure_;
  // The peer is in the same place and shares memory with this process.
  bool is_near_ = false;
  // The peer's process, if it is in the same place and may borrow. Otherwise null.
  std::shared_ptr<const ProcessWatch> neighbour_;
};

}  // namespace syncline
