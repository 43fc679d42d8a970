// One message on its way out: all that must stay put until UCX is done with it.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/shared_arena.h"
#include "comm/transport/transport.h"
#include "comm/transport/ucx/messages.h"

namespace syncline {

class UcxEndpoint;
class UcxTransport;

struct UcxSend {
  UcxSend(const WireHeader& wire, Payload payload, SendDone done)
      : wire(wire), payload(std::move(payload)), done(std::move(done)) {}

  WireHeader wire;
  Payload payload;
  std::vector<ucp_dt_iov_t>
      pieces;  // the payload in UCX's words, when it has several slices
  SendDone done;
  UcxTransport* transport = nullptr;
  UcxEndpoint* endpoint = nullptr;  // valid while an endpoint of that link is there
  bool copied = false;  // what is lent is our copy: the caller's memory is free already
  std::optional<Lending> lending;        // set when the payload is not sent but lent
  std::vector<std::byte> loan_and_head;  // what is sent then

  // REQUIRES: it is lent, but for the head.
  void Announce(const Payload& head) {
    const auto loan = std::as_bytes(std::span(&lending->loan, 1));
    loan_and_head.assign(loan.begin(), loan.end());
    for (const Slice& slice : head) {
      loan_and_head.insert(loan_and_head.end(), slice.data, slice.data + slice.size);
    }
  }
};

}  // namespace syncline
