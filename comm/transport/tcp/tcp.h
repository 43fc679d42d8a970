// The transport between hosts: TCP, encrypted with TLS 1.3.
//
// Servers listen and workers dial. A worker opens no port; answers come on the connection
// that it opened. A connection belongs to the identity whose key the peer has proved, and
// nothing is parsed before that. The resources that unknown peers can take are bounded:
// max_pending handshakes of a few KiB, each for failure_timeout / 4. When another one
// comes, the oldest connection of the source that has most of them is closed.
//
// kPlain is the same without TLS: the peer that dials says its name and is believed. It
// is for measurements, and for networks on which every member is trusted. A listener uses
// one of the two, and there is no fallback.
//
// Thread safety: see transport.h; the calling thread becomes the loop thread.
//
//   auto server = CreateTcpTransport({.listen_host = "192.0.2.7", .acceptor = &engine},
//                                    engine);
//   auto worker = CreateTcpTransport({}, session);
//   auto peer = (*worker)->Connect((*server)->address(), {.key = {identity, key}});
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/descriptors.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/transport/transport.h"

namespace syncline {

enum class TcpSecurity { kTls, kPlain };

const char* TcpSecurityName(TcpSecurity security);  // "tls", "plain"

struct TcpOptions {
  TcpSecurity security = TcpSecurity::kTls;
  // The IP address of this host to listen at; "0.0.0.0" or "::" for all. Empty: this
  // transport only dials.
  std::string listen_host = {};
  // Listens at the first free port of this range. 0: any free port.
  uint16_t first_port = 0;
  uint16_t last_port = 0;
  // The IP address by which others reach this host. Empty: listen_host.
  std::string advertised_host = {};
  // Required if the transport listens. Must outlive the transport.
  Acceptor* acceptor = nullptr;

  // F, the failure timeout. Peers that do not answer for this long count as gone. A
  // handshake may take a quarter of it.
  absl::Duration failure_timeout = absl::Seconds(10);
  size_t max_pending = 64;  // accepted connections in their handshake
  // No connection is accepted on this descriptor or a higher one.
  int first_of_the_last = FirstOfTheLast();

  // Bytes that are encrypted and sent at once, and that may wait unsent in the kernel.
  size_t gather_bytes = size_t{128} << 10;
  // Sending keys are renewed after these; see tls_channel.h.
  uint64_t rekey_bytes = uint64_t{1} << 36;
  absl::Duration rekey_after = absl::Hours(1);

  const Clock* clock = nullptr;  // must outlive the transport; null: a SteadyClock
  Logger log = {};
};

// Additional methods for a loop that waits for several transports.
class TcpTransport : public Transport {
 public:
  // The descriptor is readable when something has arrived or Wake() was called.
  virtual int fd() const = 0;
  // Returns how long a loop may sleep if fd() does not become readable. Zero: work is
  // waiting.
  virtual absl::Duration MaySleep() const = 0;
  // Returns true if a connection has bytes to send that its socket has not taken yet.
  virtual bool HasUnsent() const = 0;
};

// `receiver` must outlive the transport. Fails with Unavailable if it cannot listen.
absl::StatusOr<std::unique_ptr<TcpTransport>> CreateTcpTransport(
    const TcpOptions& options, Receiver& receiver);

}  // namespace syncline
