// Waits until a coordinator that was started elsewhere answers. Otherwise workers would
// be started and wait for it silently.
//
//   CoordinatorWait wait({.coordinator = "10.0.0.1:7070", .limit = absl::Minutes(5)}, Say);
//   while (!*wait.Answers(absl::Milliseconds(50))) { ... }   // or an error, at the limit
//
// An Inquiry (comm/rpc/diagnosis.h) finds out why there is no answer, so that the caller
// can still be interrupted during a name look-up.
//
// Thread safety: none.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/rpc/diagnosis.h"
#include "comm/rpc/tls.h"
#include "comm/rpc/tls_probe.h"
#include "grpcpp/channel.h"

namespace syncline {

class CoordinatorWait {
 public:
  struct Options {
    std::string coordinator;
    TlsOptions tls = {};
    absl::Duration limit = absl::Minutes(5);
    // Time without an answer after which `say` gets a message.
    absl::Duration quiet = absl::Milliseconds(1500);
    // Time to wait for the inquiry, also beyond `limit`.
    absl::Duration inquiry = absl::Seconds(5);
  };

  // Calls `say` with a line when there is no answer for a while.
  CoordinatorWait(Options options, std::function<void(const std::string&)> say);

  // Waits for up to `slice`, also for name look-ups. Returns whether the coordinator
  // answers. Fails with Unavailable (Failure::kUnreachable) after the limit, or when
  // waiting cannot help because another service listens there.
  absl::StatusOr<bool> Answers(absl::Duration slice);

 private:
  // Returns nullopt while the inquiry runs.
  std::optional<Diagnosis> WhyNobodyAnswers();

  const Options options_;
  const std::function<void(const std::string&)> say_;
  const SteadyClock clock_;
  const absl::Duration began_at_;
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<Inquiry> inquiry_;  // running
  absl::Duration inquired_at_;
  bool was_said_ = false;
};

}  // namespace syncline
