// A Channel with TLS 1.3 between two peers that share a key (RFC 9257): external PSK with
// ephemeral X25519, AES-128-GCM. It uses no certificates, tickets, early data or older
// versions.
//
// Records are encrypted from the caller's memory and gathered, so that each system call
// sends about gather_bytes. Sending keys are renewed long before GCM's limit of 2^24.5
// records (RFC 8446, 5.5).
//
// Thread safety: see channel.h.
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

// Returns the version of the loaded library: "OpenSSL 3.0.19".
std::string TlsLibrary();

struct TlsChannelOptions {
  size_t gather_bytes = size_t{128} << 10;
  uint64_t rekey_bytes = uint64_t{1} << 36;  // new sending keys after this many bytes
  absl::Duration rekey_after = absl::Hours(1);
  const Clock* clock = nullptr;  // must outlive the channels
};

// The state that the connections of one transport share. Must outlive them.
class TlsContext {
 public:
  // Fails with Internal if OpenSSL lacks a feature that this needs.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Create(
      const TlsChannelOptions& options);
  virtual ~TlsContext() = default;

  virtual std::unique_ptr<Channel> Dial(int fd, const PeerKey& key) = 0;
  virtual std::unique_ptr<Channel> Accept(int fd, KeyFinder find_key) = 0;
};

}  // namespace syncline
