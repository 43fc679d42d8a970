#include "cli/serve_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/flags.h"
#include "comm/base/byte_size.h"
#include "comm/base/failure.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"

namespace syncline {
namespace {

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// Says which flag an error is about.
absl::Status ForFlag(const char* flag, const absl::Status& status) {
  return Usage(absl::StrCat(flag, ": ", std::string(status.message())));
}

absl::StatusOr<std::string> DefaultStateDir(const Environment& environment) {
  const auto value = [&](const char* name) {
    const char* found = environment(name);
    return std::string(found == nullptr ? "" : found);
  };
  if (const std::string state = value("XDG_STATE_HOME"); !state.empty()) {
    return state + "/syncline";
  }
  if (const std::string home = value("HOME"); !home.empty()) {
    return home + "/.local/state/syncline";
  }
  return Usage("neither XDG_STATE_HOME nor HOME is set; say where with --state-dir");
}

absl::Status SetRole(const std::string& role, ServePlan& plan) {
  if (role != "all" && role != "coordinator" && role != "server") {
    return Usage(absl::StrCat("--role '", role, "' is none of all, coordinator, server"));
  }
  plan.has_coordinator = role != "server";
  plan.has_server = role != "coordinator";
  return absl::OkStatus();
}

absl::Status SetCounts(const ServeFlags& flags, int cores, ServePlan& plan) {
  if (flags.servers < 1 || flags.servers > static_cast<int>(kMaxServers)) {
    return Usage(
        absl::StrCat("--servers ", flags.servers, " is not in 1 to ", kMaxServers));
  }
  if (flags.engine_threads < 0 ||
      flags.engine_threads > static_cast<int>(kMaxEngineThreads)) {
    return Usage(absl::StrCat("--engine-threads ", flags.engine_threads,
                              " is not in 1 to ", kMaxEngineThreads));
  }
  plan.servers = static_cast<uint32_t>(flags.servers);
  // Half of the cores: workers of the same host need the other half.
  const int engines = flags.engine_threads > 0
                          ? flags.engine_threads
                          : std::clamp(cores / 2, 1, static_cast<int>(kMaxEngineThreads));
  plan.engines = static_cast<uint32_t>(engines);
  return absl::OkStatus();
}

absl::Status SetMemory(const ServeFlags& flags, ServePlan& plan) {
  if (flags.memory.empty()) return absl::OkStatus();
  const auto bytes = ParseByteSize(flags.memory);
  if (!bytes.ok()) return ForFlag("--memory", bytes.status());
  if (*bytes == 0) return Usage("--memory 0 leaves nothing for any job");
  plan.memory_bytes = *bytes;
  return absl::OkStatus();
}

absl::Status SetLog(const ServeFlags& flags, ServePlan& plan) {
  const auto format = ParseLogFormat(flags.log_format);
  if (!format.ok()) return ForFlag("--log-format", format.status());
  const auto level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return ForFlag("--log-level", level.status());
  plan.log = {.format = *format, .level = *level};
  return absl::OkStatus();
}

absl::Status SetTimeouts(const ServeFlags& flags, ServePlan& plan) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const absl::Duration timeout,
      ParseDurationFlag("--failure-timeout", flags.failure_timeout));
  const absl::Status valid = Timeouts::Validate(timeout);
  if (!valid.ok()) return ForFlag("--failure-timeout", valid);
  plan.timeouts = Timeouts::Derive(timeout);
  return absl::OkStatus();
}

absl::Status SetAddresses(const ServeFlags& flags, ServePlan& plan) {
  const std::pair<const char*, const std::string*> addresses[] = {
      {"--listen", &flags.listen},
      {"--admin-listen", &flags.admin_listen},
      {"--coordinator", &flags.coordinator}};
  for (const auto& [flag, address] : addresses) {
    const auto parsed = ParseHostPort(*address);
    if (!parsed.ok()) return ForFlag(flag, parsed.status());
  }
  plan.listen = flags.listen;
  plan.admin_listen = flags.admin_listen;
  plan.advertise = flags.advertise;
  plan.coordinator = flags.coordinator;
  // Who finds the coordinator on loopback is on this host, and so are all it works with.
  const std::string& control = plan.has_coordinator ? flags.listen : flags.coordinator;
  SYNCLINE_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(control));
  plan.reach = IsLoopback(host_port.host) ? Reach::kHostOnly : Reach::kNetwork;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ServePlan> MakeServePlan(const ServeFlags& flags, int cores,
                                        const Environment& environment) {
  ServePlan plan;
  SYNCLINE_RETURN_IF_ERROR(SetRole(flags.role, plan));
  SYNCLINE_RETURN_IF_ERROR(SetCounts(flags, cores, plan));
  SYNCLINE_RETURN_IF_ERROR(SetMemory(flags, plan));
  SYNCLINE_RETURN_IF_ERROR(SetLog(flags, plan));
  SYNCLINE_RETURN_IF_ERROR(SetTimeouts(flags, plan));
  SYNCLINE_RETURN_IF_ERROR(SetAddresses(flags, plan));
  plan.tls = flags.tls;
  plan.state_dir = flags.state_dir;
  if (plan.has_coordinator && plan.state_dir.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(plan.state_dir, DefaultStateDir(environment));
  }
  return plan;
}

uint64_t MemoryForJobs(const ProcessLimits& limits) {
  if (!limits.memory_bytes) return 0;
  return std::max<uint64_t>(1, *limits.memory_bytes / 5 * 4);
}

std::string ReachableAddress(const std::string& listened) {
  const auto parsed = ParseHostPort(listened);
  if (!parsed.ok()) return listened;
  HostPort address = *parsed;
  if (address.host.empty() || address.host == "0.0.0.0") address.host = "127.0.0.1";
  if (address.host == "::") address.host = "::1";
  return address.ToString();
}

}  // namespace syncline
