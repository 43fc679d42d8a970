// Logs the handshakes that this process refused as a server. gRPC reports them only in
// its own log, and the client often sees only a closed connection.
//
//   // Active until it is destroyed.
//   const RefusedHandshakes refused(log, [](const std::string& reason) { ... });
//
// `on_refused` is called for each refusal; the log gets the 1st, 2nd, 4th, 8th ….
//
// At most one object per process, since gRPC has one log. Lines are written on gRPC's
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "comm/base/log.h"
#include "grpc/support/log.h"

namespace syncline {

class RefusedHandshakes {
 public:
  using OnRefused = std::function<void(const std::string& reason)>;

  explicit RefusedHandshakes(
      Logger log, OnRefused on_refused = [](const auto&) {});
  ~RefusedHandshakes();
  RefusedHandshakes(const RefusedHandshakes&) = delete;
  RefusedHandshakes& operator=(const RefusedHandshakes&) = delete;

 private:
  static void Take(gpr_log_func_args* line);
  void Note(const std::string& reason);

  const Logger log_;
  const OnRefused on_refused_;
  uint64_t refused_ = 0;
};

// Returns the reason in a line of gRPC's log about a refused handshake, for the server's
// operator. Empty for all other lines.
std::string ReasonOfRefusal(absl::string_view grpc_line);

}  // namespace syncline
