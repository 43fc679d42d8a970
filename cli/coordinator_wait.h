// Whether a coordinator that somebody else has started answers, before workers are started
// that would wait for it in silence.
//
//   CoordinatorWait wait({.coordinator = "10.0.0.1:7070", .limit = absl::Minutes(5)}, Say);
//   while (!*wait.Answers(absl::Milliseconds(50))) { ... }   // or an error, at the limit
//
// Why nobody answers is found out by an Inquiry (comm/rpc/diagnosis.h), so that whoever
// waits can still be told to end while a name is looked up.
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
    // When it is time to say that nobody answers.
    absl::Duration quiet = absl::Milliseconds(1500);
    // So long it waits to hear why, also beyond its limit.
    absl::Duration inquiry = absl::Seconds(5);
  };

  // `say` gets a line when nobody answers for a while.
  CoordinatorWait(Options options, std::function<void(const std::string&)> say);

  // Waits for up to `slice`, also for names. Unavailable (Failure::kUnreachable) once the
  // limit is over, or it is clear that no waiting helps: something else listens there.
  absl::StatusOr<bool> Answers(absl::Duration slice);

 private:
  // Nothing while that is being found out.
  std::optional<Diagnosis> WhyNobodyAnswers();

  const Options options_;
  const std::function<void(const std::string&)> say_;
  const SteadyClock clock_;
  const absl::Duration began_at_;
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<Inquiry> inquiry_;  // under way
  absl::Duration inquired_at_;
  bool was_said_ = false;
};

}  // namespace syncline
