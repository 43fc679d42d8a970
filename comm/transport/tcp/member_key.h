// The keys that a worker and a server share, and the names of workers.
//
// The coordinator draws a key for each incarnation of a worker. From it, it derives a key
// for each pair of worker and server, and tells it these two only. A server therefore
// cannot pretend to be a worker at another server, and a key ends with either
// incarnation.
//
// Thread safety: functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "comm/base/secret_key.h"

namespace syncline {

// An incarnation of a worker, as its connections prove it.
struct MemberIdentity {
  uint32_t job = 0;
  uint32_t rank = 0;
  uint32_t incarnation = 0;

  friend bool operator==(const MemberIdentity&, const MemberIdentity&) = default;
  friend bool operator<(const MemberIdentity& a, const MemberIdentity& b) {
    return std::tie(a.job, a.rank, a.incarnation) <
           std::tie(b.job, b.rank, b.incarnation);
  }
};

// Encodes as 16 bytes: "SLW2", then the three numbers, little-endian.
std::string EncodeIdentity(const MemberIdentity& identity);
std::optional<MemberIdentity> ParseIdentity(std::string_view bytes);

// An incarnation of a server.
struct ServerIdentity {
  uint32_t server = 0;
  uint32_t incarnation = 0;
};

// Draws a key from the system's random device.
SecretKey DrawKey();

// Computes HKDF-Expand (RFC 5869, SHA-256) of `worker_key` with "syncline/2 psk" | job |
// rank | incarnation | server | the server's incarnation.
SecretKey DeriveMemberKey(const SecretKey& worker_key, const MemberIdentity& worker,
                          const ServerIdentity& server);

}  // namespace syncline
