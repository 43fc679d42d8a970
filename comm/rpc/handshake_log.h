// Handshakes that this process refused as a server, in its log: gRPC says them only to its
// own, and the client often hears nothing but a closed connection.
//
//   // From now on, until it ends.
//   const RefusedHandshakes refused(log, [](const std::string& reason) { ... });
//
// `on_refused` hears each one; of the log's lines there are the 1st, 2nd, 4th, 8th ….
//
// One at a time per process, since gRPC has one log. Thread safety: none needed; lines are
// written from gRPC's threads.
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

// What a line of gRPC's log says about a refused handshake, for the operator of the
// server; empty for all other lines.
std::string ReasonOfRefusal(absl::string_view grpc_line);

}  // namespace syncline
