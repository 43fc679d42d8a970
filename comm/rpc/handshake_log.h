// Handshakes that this process refused as a server, in its log: gRPC says them only to its
// own, and the client often hears nothing but a closed connection.
//
//   const RefusedHandshakes refused(log);  // from now on, until it ends
//
// One at a time per process, since gRPC has one log. Thread safety: none needed; lines are
// written from gRPC's threads.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "comm/base/log.h"

namespace syncline {

class RefusedHandshakes {
 public:
  explicit RefusedHandshakes(Logger log);
  ~RefusedHandshakes();
  RefusedHandshakes(const RefusedHandshakes&) = delete;
  RefusedHandshakes& operator=(const RefusedHandshakes&) = delete;

 private:
  const Logger log_;
};

// What a line of gRPC's log says about a refused handshake, for the operator of the
// server; empty for all other lines.
std::string ReasonOfRefusal(absl::string_view grpc_line);

}  // namespace syncline
