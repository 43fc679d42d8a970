// One message that is being sent: everything that must stay in memory until UCX is done
// with it.
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
  // The payload in UCX's form, if it has several slices.
  std::vector<ucp_dt_iov_t> pieces;
  SendDone done;
  UcxTransport* transport = nullptr;
  UcxEndpoint* endpoint = nullptr;  // valid while an endpoint with this link exists
  // The lent memory is a copy; the caller's memory is free already.
  bool copied = false;
  std::optional<Lending> lending;        // set if the payload is lent
  std::vector<std::byte> loan_and_head;  // the bytes that are sent in that case

  // Fills loan_and_head. REQUIRES: the payload after the head is lent.
  void Announce(const Payload& head) {
    const auto loan = std::as_bytes(std::span(&lending->loan, 1));
    loan_and_head.assign(loan.begin(), loan.end());
    for (const Slice& slice : head) {
      loan_and_head.insert(loan_and_head.end(), slice.data, slice.data + slice.size);
    }
  }
};

}  // namespace syncline
