#include "cli/serve_options.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/checkpoint_store.h"
#include "cli/flags.h"
#include "comm/base/byte_size.h"
#include "comm/base/failure.h"
#include "comm/base/limits.h"
#include "comm/base/patience.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/transport/tcp/address.h"
#include "server/journal/folder.h"

namespace syncline {
namespace {

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// Prefixes an error with the flag that it is about.
absl::Status ForFlag(const char* flag, const absl::Status& status) {
  return Usage(absl::StrCat(flag, ": ", std::string(status.message())));
}

absl::Status SetRole(const std::string& role, ServePlan& plan) {
  if (role != "all" && role != "coordinator" && role != "server") {
    return Usage(
        absl::StrCat("--role '", role, "' is unknown; give all, coordinator or server"));
  }
  plan.has_coordinator = role != "server";
  plan.has_server = role != "coordinator";
  return absl::OkStatus();
}

absl::Status SetCounts(const ServeFlags& flags, int cores, ServePlan& plan) {
  const int least = plan.has_server ? 1 : 0;
  if (flags.servers < least || flags.servers > static_cast<int>(kMaxServers)) {
    return Usage(absl::StrCat("--servers ", flags.servers, " is not in ", least, " to ",
                              kMaxServers));
  }
  if (flags.engine_threads < 0 ||
      flags.engine_threads > static_cast<int>(kMaxEngineThreads)) {
    return Usage(absl::StrCat("--engine-threads ", flags.engine_threads,
                              " is not in 1 to ", kMaxEngineThreads));
  }
  // A member that connects again may still have its old stream for a while.
  if (flags.streams_per_certificate < 2 ||
      flags.streams_per_certificate > static_cast<int>(kMaxWorkers)) {
    return Usage(absl::StrCat("--streams-per-certificate ", flags.streams_per_certificate,
                              " is not in 2 to ", kMaxWorkers));
  }
  plan.streams_per_certificate = static_cast<size_t>(flags.streams_per_certificate);
  plan.servers = static_cast<uint32_t>(flags.servers);
  // Half of the cores, because workers on the same host need the other half.
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
  SYNCLINE_ASSIGN_OR_RETURN(plan.drain_timeout,
                            ParseDurationFlag("--drain-timeout", flags.drain_timeout));
  plan.patience = DefaultPatience(timeout);
  if (flags.patience.empty()) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(plan.patience,
                            ParseDurationFlag("--patience", flags.patience));
  return absl::OkStatus();
}

// Parses a range such as "7100-7199".
absl::Status SetPorts(const std::string& text, DataPlanePlan& plan) {
  if (text.empty()) return absl::OkStatus();
  const std::pair<std::string, std::string> ends =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  uint32_t first = 0, last = 0;
  if (!absl::SimpleAtoi(ends.first, &first) || !absl::SimpleAtoi(ends.second, &last) ||
      first == 0 || first > last || last > 65535) {
    return Usage(
        absl::StrCat("--data-plane-ports is FIRST-LAST, such as 7100-7199, not '",
                     std::string(text), "'"));
  }
  plan.first_port = static_cast<uint16_t>(first);
  plan.last_port = static_cast<uint16_t>(last);
  return absl::OkStatus();
}

absl::Status SetDataPlane(const ServeFlags& flags, const std::string& control_host,
                          ServePlan& plan) {
  const bool is_one_host = IsLoopback(control_host);
  plan.data_plane_address = flags.data_plane_address;
  const bool is_fabric_known =
      flags.rdma_fabric == "isolated" || flags.rdma_fabric == "ipsec";
  if (flags.data_plane == "auto") {
    plan.data_plane.mode = is_one_host ? DataPlaneMode::kHost : DataPlaneMode::kAuto;
  } else if (flags.data_plane == "tls") {
    plan.data_plane.mode = DataPlaneMode::kTls;
  } else if (flags.data_plane == "plain") {
    plan.data_plane.mode = DataPlaneMode::kPlain;
  } else if (flags.data_plane == "rdma" && is_fabric_known) {
    plan.data_plane.mode = DataPlaneMode::kRdma;
  } else if (flags.data_plane == "rdma") {
    return Usage(
        "--data-plane rdma seals nothing and trusts everyone on its fabric; say why that "
        "is safe: --rdma-fabric isolated, or --rdma-fabric ipsec");
  } else {
    return Usage(absl::StrCat("--data-plane is auto, tls, plain or rdma, not '",
                              flags.data_plane, "'"));
  }
  SYNCLINE_RETURN_IF_ERROR(SetPorts(flags.data_plane_ports, plan.data_plane));
  plan.data_plane.because =
      flags.data_plane != "auto" ? absl::StrCat("--data-plane ", flags.data_plane)
      : is_one_host              ? absl::StrCat("the coordinator is at ", control_host)
                                 : "members may be on other hosts";
  if (is_one_host) plan.data_plane.listen_host = "127.0.0.1";
  return absl::OkStatus();
}

absl::Status SetAddresses(const ServeFlags& flags, ServePlan& plan) {
  const std::pair<const char*, const std::string*> addresses[] = {
      {"--listen", &flags.listen}, {"--admin-listen", &flags.admin_listen}};
  for (const auto& [flag, address] : addresses) {
    const auto parsed = ParseHostPort(*address);
    if (!parsed.ok()) return ForFlag(flag, parsed.status());
  }
  const auto coordinators = ParseAddresses(flags.coordinator);
  if (!coordinators.ok()) return ForFlag("--coordinator", coordinators.status());
  plan.listen = flags.listen;
  plan.admin_listen = flags.admin_listen;
  plan.advertise = flags.advertise;
  plan.coordinator = flags.coordinator;
  // If the coordinator's address is loopback, all peers are on this host.
  const std::string& control =
      plan.has_coordinator ? flags.listen : coordinators->front();
  SYNCLINE_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(control));
  return SetDataPlane(flags, host_port.host, plan);
}

// Beyond loopback, the admin port needs TLS, as the control port does, unless a flag
// allows plain text.
absl::Status SetAdmin(const ServeFlags& flags, ServePlan& plan) {
  plan.admin_token_file = flags.admin_token_file;
  SYNCLINE_ASSIGN_OR_RETURN(const HostPort admin, ParseHostPort(flags.admin_listen));
  if (IsLoopback(admin.host) || flags.admin_plain) return absl::OkStatus();
  plan.admin_seals = flags.tls.HasTls();
  if (plan.admin_seals || flags.tls.insecure) return absl::OkStatus();
  return Usage(absl::StrCat(
      "refusing to serve --admin-listen ", flags.admin_listen,
      " in plain text: anyone on the way could read names of jobs and hosts; give "
      "--tls-cert, --tls-key and --tls-ca, or, on a network you trust, --admin-plain"));
}

// Checks and sets the options of a coordinator that is one of several.
absl::Status SetEtcd(const ServeFlags& flags, ServePlan& plan) {
  const bool has_files = !flags.etcd_tls.ca_file.empty() ||
                         !flags.etcd_tls.cert_file.empty() ||
                         !flags.etcd_tls.key_file.empty();
  if (flags.state.empty()) {
    if (has_files) return Usage("--etcd-ca, --etcd-cert and --etcd-key go with --state");
    return absl::OkStatus();
  }
  if (!plan.has_coordinator || plan.has_server) {
    return Usage(
        "--state needs --role coordinator: if servers end with the coordinator, another "
        "one has nothing to take over");
  }
  if (!flags.state_dir.empty()) {
    return Usage("--state and --state-dir exclude each other; drop one of them");
  }
  const auto address = ParseEtcdAddress(flags.state);
  if (!address.ok()) return ForFlag("--state", address.status());
  const absl::Status tls = CheckEtcdTls(*address, flags.etcd_tls, flags.tls.insecure);
  if (!tls.ok()) return ForFlag("--state", tls);
  plan.etcd = *address;
  plan.etcd_tls = flags.etcd_tls;
  return absl::OkStatus();
}

}  // namespace

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
  return Usage("neither XDG_STATE_HOME nor HOME is set; give --state-dir");
}

absl::StatusOr<ServePlan> MakeServePlan(const ServeFlags& flags, int cores,
                                        const Environment& environment) {
  ServePlan plan;
  SYNCLINE_RETURN_IF_ERROR(SetRole(flags.role, plan));
  SYNCLINE_RETURN_IF_ERROR(SetCounts(flags, cores, plan));
  SYNCLINE_RETURN_IF_ERROR(SetMemory(flags, plan));
  SYNCLINE_RETURN_IF_ERROR(SetLog(flags, plan));
  SYNCLINE_RETURN_IF_ERROR(SetTimeouts(flags, plan));
  SYNCLINE_RETURN_IF_ERROR(SetAddresses(flags, plan));
  SYNCLINE_RETURN_IF_ERROR(SetAdmin(flags, plan));
  plan.audit_log = flags.audit_log;
  if (!flags.revoked.empty() && !plan.has_coordinator) {
    return Usage("--revoked is for coordinators; drop it, or serve --role coordinator");
  }
  plan.revoked = flags.revoked;
  SYNCLINE_RETURN_IF_ERROR(CheckCheckpointStore(flags.checkpoint_dir));
  plan.checkpoint_dir = flags.checkpoint_dir;
  if (!flags.journal_dir.empty() && !plan.has_server) {
    return Usage("--journal-dir is for servers; drop it, or serve --role server");
  }
  plan.journal_dir = flags.journal_dir;
  const absl::Status factor = CheckSnapshotFactor(flags.journal_snapshot_factor);
  if (!factor.ok()) return ForFlag("--journal-snapshot-factor", factor);
  plan.journal_snapshot_factor = flags.journal_snapshot_factor;
  if (flags.rebalance != "auto" && flags.rebalance != "off") {
    return Usage(absl::StrCat("--rebalance is auto or off, not '", flags.rebalance, "'"));
  }
  plan.spreads_shares = flags.rebalance == "auto";
  plan.tls = flags.tls;
  SYNCLINE_RETURN_IF_ERROR(SetEtcd(flags, plan));
  plan.state_dir = flags.state_dir;
  if (plan.has_coordinator && plan.state_dir.empty() && !plan.etcd) {
    SYNCLINE_ASSIGN_OR_RETURN(plan.state_dir, DefaultStateDir(environment));
  }
  return plan;
}

absl::Status FindDataPlaneHost(const std::string& address, const std::string& coordinator,
                               DataPlanePlan& plan) {
  const bool listens =
      plan.mode != DataPlaneMode::kHost && plan.mode != DataPlaneMode::kRdma;
  if (!listens) return absl::OkStatus();
  if (!address.empty()) {
    const auto reached = ResolveHost(address);
    if (!reached.ok()) return ForFlag("--data-plane-address", reached.status());
    plan.advertised_host = *reached;
    plan.listen_host = absl::StrContains(*reached, ":") ? "::" : "0.0.0.0";
    return absl::OkStatus();
  }
  if (!plan.listen_host.empty()) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const HostPort control,
                            ParseHostPort(coordinator.substr(0, coordinator.find(','))));
  // Listens on the address that this host uses towards the coordinator. If that name is
  // not known yet, or is loopback, listens on the host's primary address.
  absl::StatusOr<std::string> host = ResolveHost(control.host);
  host = host.ok() && !IsLoopback(*host) ? SourceAddressTowards(*host) : PrimaryAddress();
  // A host without a network serves only itself.
  plan.listen_host = host.ok() ? *std::move(host) : "127.0.0.1";
  return absl::OkStatus();
}

absl::Status CheckJournalDir(const std::string& directory) {
  absl::Status takes_files = MakeFolder(directory);
  if (takes_files.ok()) takes_files = TryFolder(directory);
  return takes_files.ok() ? takes_files : ForFlag("--journal-dir", takes_files);
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

std::optional<std::string> AddressForOthers(const std::string& listened) {
  const auto parsed = ParseHostPort(listened);
  if (!parsed.ok() || ReachableAddress(listened) == listened) return std::nullopt;
  const absl::StatusOr<std::string> primary = PrimaryAddress();
  if (!primary.ok() || IsLoopback(*primary)) return std::nullopt;
  HostPort address = *parsed;
  address.host = *primary;
  return address.ToString();
}

}  // namespace syncline
