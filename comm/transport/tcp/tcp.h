// Our own TCP, sealed by TLS 1.3: the transport between hosts.
//
// Servers listen, workers dial: a worker opens no port, and is answered on the connection
// that it opened. A connection belongs to the identity whose key it proved; nothing of it
// is parsed before, and what a stranger can take is bounded: max_pending handshakes of a
// few KiB, failure_timeout / 4 each, the oldest leaving when one more comes.
//
// kPlain is the same without TLS: who dials says who it is, and is believed. For
// measuring, and for networks whose every member is trusted. A listener speaks one of the
// two, and nothing falls back.
//
// Thread safety: as transport.h says; the calling thread becomes the loop thread.
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
  // An IP address of this host to listen at, "0.0.0.0" or "::" for all. Empty: only
  // dials.
  std::string listen_host = {};
  // The first free one of these; 0: any that is free.
  uint16_t first_port = 0;
  uint16_t last_port = 0;
  // The IP address by which others reach this host; empty: listen_host.
  std::string advertised_host = {};
  // Must be there where it listens; outlives the transport.
  Acceptor* acceptor = nullptr;

  // F. Peers that do not answer for so long are gone; handshakes have a quarter of it.
  absl::Duration failure_timeout = absl::Seconds(10);
  size_t max_pending = 64;  // connections that have proved nothing yet
  // Nobody comes in by this descriptor, or one above it.
  int first_of_the_last = FirstOfTheLast();

  // What is encrypted and sent at once, and what may wait in the kernel unsent.
  size_t gather_bytes = size_t{128} << 10;
  // When sending keys are renewed, see tls_channel.h.
  uint64_t rekey_bytes = uint64_t{1} << 36;
  absl::Duration rekey_after = absl::Hours(1);

  const Clock* clock = nullptr;  // outlives the transport; null: a SteadyClock
  Logger log = {};
};

// What a loop that waits for several transports must know of this one.
class TcpTransport : public Transport {
 public:
  // Readable when something has arrived or Wake() was called.
  virtual int fd() const = 0;
  // How long a loop may sleep on fd() and whatever else; zero when work is waiting.
  virtual absl::Duration MaySleep() const = 0;
  // Whether a connection has something to send that its socket has not taken yet.
  virtual bool HasUnsent() const = 0;
};

// `receiver` outlives the transport. Unavailable when it cannot listen.
absl::StatusOr<std::unique_ptr<TcpTransport>> CreateTcpTransport(
    const TcpOptions& options, Receiver& receiver);

}  // namespace syncline
