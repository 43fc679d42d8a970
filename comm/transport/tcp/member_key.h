// The keys that a worker and a server share, and the names that workers go by.
//
// The coordinator draws a key for each life of a worker and tells the worker and each
// server what is derived from it for this pair alone: a server cannot speak for a worker
// at another server, and a key dies with either's life.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "comm/base/secret_key.h"

namespace syncline {

// A worker's life, as its connections prove it.
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

// "SLW2", then the three numbers, little-endian: 16 bytes.
std::string EncodeIdentity(const MemberIdentity& identity);
std::optional<MemberIdentity> ParseIdentity(std::string_view bytes);

// A server's life.
struct ServerIdentity {
  uint32_t server = 0;
  uint32_t incarnation = 0;
};

// From the system's random device.
SecretKey DrawKey();

// HKDF-Expand (RFC 5869, SHA-256) of `worker_key` with
// "syncline/2 psk" | job | rank | incarnation | server | its incarnation.
SecretKey DeriveMemberKey(const SecretKey& worker_key, const MemberIdentity& worker,
                          const ServerIdentity& server);

}  // namespace syncline
