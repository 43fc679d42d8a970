#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "worker/client/session.h"

namespace syncline {
namespace {

// Launchers that users have; the first variable that is set names the rank.
constexpr std::array kRankVariables = {"RANK",          "OMPI_COMM_WORLD_RANK",
                                       "PMI_RANK",      "SLURM_PROCID",
                                       "VC_TASK_INDEX", "JOB_COMPLETION_INDEX"};
constexpr std::array kWorldSizeVariables = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
                                            "PMI_SIZE", "SLURM_NTASKS"};

void ReadText(const char* variable, std::string& value) {
  if (const char* text = std::getenv(variable); text != nullptr && *text != '\0')
    value = text;
}

template <typename Variables>
absl::Status ReadNumber(const Variables& variables, uint32_t& value) {
  for (const char* variable : variables) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == '\0') continue;
    if (absl::SimpleAtoi(text, &value)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("environment variable ", variable, "=",
                                                   text, " is not a whole number"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SessionOptions> SessionOptions::FromEnv() {
  SessionOptions options;
  ReadText("SYNCLINE_COORDINATOR", options.coordinator);
  ReadText("SYNCLINE_JOB", options.job);
  ReadText("SYNCLINE_RUN_ID", options.run_id);
  ReadText("SYNCLINE_TLS_CERT", options.tls_cert);
  ReadText("SYNCLINE_TLS_KEY", options.tls_key);
  ReadText("SYNCLINE_TLS_CA", options.tls_ca);
  SYNCLINE_RETURN_IF_ERROR(ReadNumber(kRankVariables, options.rank));
  SYNCLINE_RETURN_IF_ERROR(ReadNumber(kWorldSizeVariables, options.world_size));
  std::string timeout;
  ReadText("SYNCLINE_FAILURE_TIMEOUT", timeout);
  if (!timeout.empty() && !absl::ParseDuration(timeout, &options.failure_timeout)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable SYNCLINE_FAILURE_TIMEOUT=", timeout,
                     " is no duration such as 10s or 500ms"));
  }
  return options;
}

}  // namespace syncline
