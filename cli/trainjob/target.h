// Where a TrainJob's progress is pushed to, and with what: the variables that Kubeflow
// Trainer gives to the pods of a TrainJob (KEP-2779, feature gate TrainJobStatus).
//
//   const auto target = TrainJobTarget::FromEnvironment();
//   if (!target.ok()) say(target.status().message());       // a variable is wrong
//   if (target.ok() && target->has_value()) push to it…     // otherwise: not a TrainJob
//
// Thread safety: plain values.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

struct TrainJobTarget {
  std::string origin = {};      // "https://trainer.kubeflow.svc:10443"
  std::string path = {};        // "/apis/trainer.kubeflow.org/…/status"
  std::string token_file = {};  // its token is replaced from time to time
  std::string ca_file = {};     // empty: the authorities of this machine

  // Reads KUBEFLOW_TRAINER_SERVER_URL, _TOKEN and _CA_CERT. Returns nullopt without a
  // URL. Fails with InvalidArgument, which names the variable, if the URL is not one of
  // HTTPS, or if there is no token.
  static absl::StatusOr<std::optional<TrainJobTarget>> FromEnvironment();

  // Does the same with other variables, for tests. Unset variables are empty.
  using Variables = std::function<std::string(const char* name)>;
  static absl::StatusOr<std::optional<TrainJobTarget>> From(const Variables& variables);

  // Returns what the token's file has now. Fails with FailedPrecondition if it cannot be
  // read, or has no token.
  absl::StatusOr<std::string> ReadToken() const;
};

}  // namespace syncline
