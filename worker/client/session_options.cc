#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/base/limits.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/base/sync_mode.h"
#include "worker/client/session.h"

namespace syncline {
namespace {

// Variables of usual launchers. The first one that is set counts.
constexpr std::array kRankVariables = {"RANK",          "OMPI_COMM_WORLD_RANK",
                                       "PMI_RANK",      "SLURM_PROCID",
                                       "VC_TASK_INDEX", "JOB_COMPLETION_INDEX"};
constexpr std::array kWorldSizeVariables = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
                                            "PMI_SIZE", "SLURM_NTASKS"};

void ReadText(const char* variable, std::string& value) {
  if (const char* text = std::getenv(variable); text != nullptr && *text != '\0')
    value = text;
}

bool IsSet(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0';
}

template <typename Variables>
absl::Status ReadNumber(const Variables& variables, uint32_t& value) {
  for (const char* variable : variables) {
    if (!IsSet(variable)) continue;
    const char* text = std::getenv(variable);
    if (absl::SimpleAtoi(text, &value)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("environment variable ", variable, "=",
                                                   text, " is not a whole number"));
  }
  return absl::OkStatus();
}

// Reads ps-lite's variables, if no other launcher's are set. Only workers use a session:
// `syncline serve` and SYNCLINE_COORDINATOR replace ps-lite's servers and scheduler.
absl::Status ReadDmlc(SessionOptions& options) {
  if (std::ranges::any_of(kRankVariables, IsSet) ||
      std::ranges::any_of(kWorldSizeVariables, IsSet)) {
    return absl::OkStatus();
  }
  std::string role = "worker";
  ReadText("DMLC_ROLE", role);
  if (role != "worker") {
    return absl::FailedPreconditionError(absl::StrCat(
        "environment variable DMLC_ROLE=", role,
        ": only workers open sessions; in place of ps-lite's servers and scheduler start "
        "`syncline serve`, and give workers its address as SYNCLINE_COORDINATOR"));
  }
  SYNCLINE_RETURN_IF_ERROR(
      ReadNumber(std::array{"DMLC_WORKER_ID", "DMLC_RANK"}, options.rank));
  return ReadNumber(std::array{"DMLC_NUM_WORKER"}, options.world_size);
}

// Reads the job settings that a launcher passes on. The program may still change them.
absl::Status ReadJobSettings(JobSettings& settings) {
  for (const JobSetting& setting : kJobSettings) {
    if (setting.said_by == SaidBy::kProgram) continue;
    const std::string variable = VariableOf(setting);
    std::string value;
    ReadText(variable.c_str(), value);
    if (value.empty()) continue;
    const absl::Status read = SetJobSetting(setting, value, settings);
    if (read.ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat("environment variable ", variable, "=",
                                                   Printable(value), ": ",
                                                   std::string(read.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<SessionOptions::LearningRateRange> ParseRange(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  SessionOptions::LearningRateRange range;
  if (parts.size() == 3 && absl::SimpleAtod(parts[0], &range.first) &&
      absl::SimpleAtod(parts[1], &range.last) &&
      absl::SimpleAtoi(parts[2], &range.steps) && range.first > 0 &&
      range.last > range.first && range.steps > 0) {
    return range;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable SYNCLINE_LR_RANGE=", text,
                   " is not FIRST:LAST:STEPS such as 1e-6:1:200"));
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
  ReadText("SYNCLINE_IDENTITIES", options.identities);
  SYNCLINE_RETURN_IF_ERROR(ReadNumber(kRankVariables, options.rank));
  SYNCLINE_RETURN_IF_ERROR(ReadNumber(kWorldSizeVariables, options.world_size));
  SYNCLINE_RETURN_IF_ERROR(ReadDmlc(options));
  uint32_t rejoins = 0;
  SYNCLINE_RETURN_IF_ERROR(ReadNumber(std::array{"SYNCLINE_REJOIN"}, rejoins));
  options.rejoins = rejoins != 0;
  SYNCLINE_RETURN_IF_ERROR(ReadJobSettings(options.settings));
  if (IsSet("SYNCLINE_CODEC_THREADS")) {
    SYNCLINE_RETURN_IF_ERROR(ReadNumber(std::array{"SYNCLINE_CODEC_THREADS"},
                                        options.codec_threads.emplace()));
  }
  std::string mode;
  ReadText("SYNCLINE_MODE", mode);
  if (!mode.empty()) {
    const absl::StatusOr<NamedOptions> named = ParseModeText(mode);
    if (!named.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment variable SYNCLINE_MODE=", mode, ": ",
                       std::string(named.status().message())));
    }
    options.training.mode = *named;
  }
  std::string timeout;
  ReadText("SYNCLINE_FAILURE_TIMEOUT", timeout);
  if (!timeout.empty() && !absl::ParseDuration(timeout, &options.failure_timeout)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable SYNCLINE_FAILURE_TIMEOUT=", timeout,
                     " is not a duration such as 10s or 500ms"));
  }
  std::string patience;
  ReadText("SYNCLINE_PATIENCE", patience);
  if (!patience.empty() && !absl::ParseDuration(patience, &options.patience.emplace())) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable SYNCLINE_PATIENCE=", patience,
                     " is not a duration such as 5m or 90s"));
  }
  std::string range;
  ReadText("SYNCLINE_LR_RANGE", range);
  if (!range.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(options.learning_rate_range, ParseRange(range));
  }
  return options;
}

}  // namespace syncline
