#include "comm/rpc/handshake_log.h"

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "comm/rpc/channel.h"
#include "grpc/support/log.h"

namespace syncline {
namespace {

ABSL_CONST_INIT absl::Mutex mutex(absl::kConstInit);
RefusedHandshakes* destination ABSL_GUARDED_BY(mutex) = nullptr;

}  // namespace

std::string ReasonOfRefusal(absl::string_view grpc_line) {
  if (!absl::StrContains(grpc_line, "Handshake failed")) return "";
  if (absl::StrContains(grpc_line, "certificate verify failed")) {
    return "the client's certificate has expired, or is not signed by --tls-ca";
  }
  if (absl::StrContains(grpc_line, "peer did not return a certificate")) {
    return "the client showed no certificate; it needs --tls-cert and --tls-key";
  }
  if (absl::StrContains(grpc_line, "wrong version number") ||
      absl::StrContains(grpc_line, "http request")) {
    return "the client speaks plain text; it needs --tls-ca, --tls-cert and --tls-key";
  }
  return std::string(grpc_line);
}

void RefusedHandshakes::Take(gpr_log_func_args* line) {
  const std::string reason = ReasonOfRefusal(line->message);
  if (reason.empty()) return;
  absl::MutexLock lock(&mutex);
  if (destination != nullptr) destination->Note(reason);
}

// A peer that tries again and again must not fill the log.
void RefusedHandshakes::Note(const std::string& reason) {
  on_refused_(reason);
  if (!std::has_single_bit(++refused_)) return;
  log_.Warning("a TLS handshake was refused",
               {{"reason", reason}, {"refused", refused_}});
}

RefusedHandshakes::RefusedHandshakes(Logger log, OnRefused on_refused)
    : log_(std::move(log)), on_refused_(std::move(on_refused)) {
  absl::MutexLock lock(&mutex);
  destination = this;
  // If the user asks for gRPC's own log lines, these are shown instead.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function(Take);
}

RefusedHandshakes::~RefusedHandshakes() {
  SilenceGrpcLog();
  absl::MutexLock lock(&mutex);
  destination = nullptr;
}

}  // namespace syncline
