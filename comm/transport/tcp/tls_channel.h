// A Channel of TLS 1.3 between two that share a key (RFC 9257): external PSK with
// ephemeral X25519, AES-128-GCM. No certificates, tickets, early data or older versions.
//
// Records are encrypted from the caller's memory and gathered, so that the kernel is
// called for about gather_bytes at once. Sending keys are renewed long before GCM's limit
// of 2^24.5 records (RFC 8446, 5.5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/transport/tcp/channel.h"

namespace syncline {

// "OpenSSL 3.0.19", of the library that was loaded.
std::string TlsLibrary();

struct TlsChannelOptions {
  size_t gather_bytes = size_t{128} << 10;
  uint64_t rekey_bytes = uint64_t{1} << 36;  // new sending keys after so many bytes
  absl::Duration rekey_after = absl::Hours(1);
  const Clock* clock = nullptr;  // outlives the channels
};

// What the connections of one transport share; outlives them.
class TlsContext {
 public:
  // Internal when OpenSSL lacks what this needs.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Create(
      const TlsChannelOptions& options);
  virtual ~TlsContext() = default;

  virtual std::unique_ptr<Channel> Dial(int fd, const PeerKey& key) = 0;
  virtual std::unique_ptr<Channel> Accept(int fd, KeyFinder find_key) = 0;
};

}  // namespace syncline
