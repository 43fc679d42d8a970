// The bytes that precede a Syncline header between two UCX transports.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <ucp/api/ucp.h>

#include "comm/base/limits.h"
#include "comm/transport/transport.h"

namespace syncline {

// Ids of UCX active messages; part of the wire format.
enum UcxMessageId : unsigned {
  kUcxCopied = 1,  // the payload follows, by the protocol that UCX chooses
  // A Loan follows. The payload lies in shared memory, except its first bytes, which
  // follow the loan.
  kUcxLent = 2,
};

// UCX may complete a large message after a small one that was sent later. The number of a
// message on its link restores the order.
struct LinkPrefix {
  uint64_t link = 0;  // random name of the sender's endpoint
  uint64_t number = 0;
};
static_assert(sizeof(LinkPrefix) == 16);

// The header as UCX sends it: a LinkPrefix and Syncline's header.
class WireHeader {
 public:
  static constexpr size_t kMaxBytes = sizeof(LinkPrefix) + kMessageHeaderBytes;

  WireHeader(LinkPrefix prefix, ByteView header)
      : bytes_(sizeof(prefix) + header.size()) {
    std::memcpy(data_.data(), &prefix, sizeof(prefix));
    std::memcpy(data_.data() + sizeof(prefix), header.data(), header.size());
  }

  // REQUIRES: IsPlausible(bytes).
  explicit WireHeader(ByteView bytes) : bytes_(bytes.size()) {
    std::memcpy(data_.data(), bytes.data(), bytes.size());
  }

  static bool IsPlausible(ByteView bytes) {
    return bytes.size() >= sizeof(LinkPrefix) && bytes.size() <= kMaxBytes;
  }

  LinkPrefix prefix() const {
    LinkPrefix prefix;
    std::memcpy(&prefix, data_.data(), sizeof(prefix));
    return prefix;
  }
  ByteView header() const {
    return ByteView(data_).first(bytes_).subspan(sizeof(LinkPrefix));
  }
  ByteView bytes() const { return ByteView(data_).first(bytes_); }

 private:
  std::array<std::byte, kMaxBytes> data_ = {};
  size_t bytes_;
};

}  // namespace syncline
