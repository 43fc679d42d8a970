// The flags of `syncline serve`, and the checked plan that follows from them.
//
// Thread safety: plain data and functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/settings.h"
#include "comm/base/limits.h"
#include "comm/base/log.h"
#include "comm/base/process_limits.h"
#include "comm/base/timeouts.h"
#include "comm/rpc/tls.h"
#include "comm/transport/network/network.h"
#include "server/etcd/etcd_address.h"
#include "server/journal/journal.h"

namespace syncline {

// The flags as they were given.
struct ServeFlags {
  std::string role = "all";
  std::string listen = "127.0.0.1:7070";
  std::string admin_listen = "127.0.0.1:7071";
  bool admin_plain = false;
  std::string admin_token_file;
  std::string advertise;
  std::string state_dir;
  std::string state;  // "etcd://…"; empty: use state_dir
  EtcdTls etcd_tls;
  std::string coordinator = "127.0.0.1:7070";
  int servers = 1;
  int engine_threads = 0;
  std::string checkpoint_dir;
  std::string journal_dir;
  double journal_snapshot_factor = kSnapshotFactor;
  std::string memory;  // such as "8GiB"; empty: MemoryForJobs
  std::string data_plane = "auto";
  std::string data_plane_address;
  std::string data_plane_ports;
  std::string rdma_fabric;
  std::string failure_timeout = "10s";
  std::string patience;  // such as "5m"; empty: derived from failure_timeout
  std::string drain_timeout = "45s";
  std::string rebalance = "off";  // or "auto"
  std::string audit_log;
  std::string revoked;
  int streams_per_certificate = static_cast<int>(kMaxWorkers);
  std::string log_format = "text";
  std::string log_level = "info";
  TlsOptions tls;
};

// The checked flags, with defaults filled in.
struct ServePlan {
  bool has_coordinator = false;
  bool has_server = false;
  std::string listen;
  std::string admin_listen;
  bool admin_seals = false;      // the admin port uses TLS
  std::string admin_token_file;  // empty: no token is needed to read
  std::string advertise;         // empty: the address that it listens on
  std::string state_dir;
  std::optional<EtcdAddress> etcd = std::nullopt;  // if set: replaces state_dir
  EtcdTls etcd_tls = {};
  // for a server without a coordinator; may list several addresses
  std::string coordinator;
  uint32_t servers = 1;
  uint32_t engines = 1;
  uint64_t memory_bytes = 0;  // for a server's jobs; 0: not given
  DataPlanePlan data_plane = {};
  // Address or name at which servers are reached. Empty: find it out (FindDataPlaneHost).
  std::string data_plane_address;
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  absl::Duration patience;  // how long a server waits for a lost coordinator
  // How long a server that is told to end waits until others hold the data that jobs
  // need.
  absl::Duration drain_timeout;
  bool spreads_shares = true;  // of a coordinator
  LogOptions log = {};
  std::string audit_log;  // empty: none
  std::string revoked;    // list of a coordinator; empty: none
  size_t streams_per_certificate = kMaxWorkers;
  std::string checkpoint_dir;  // empty: none
  std::string journal_dir;     // for a server; empty: none
  double journal_snapshot_factor = kSnapshotFactor;
  TlsOptions tls = {};
};

// Returns $XDG_STATE_HOME/syncline, or ~/.local/state/syncline. Fails with
// Failure::kUsage when neither variable is set.
absl::StatusOr<std::string> DefaultStateDir(const Environment& environment);

// Checks the flags. The default number of engines depends on `cores`, those of this
// machine. Errors are Failure::kUsage and name the flag.
absl::StatusOr<ServePlan> MakeServePlan(const ServeFlags& flags, int cores,
                                        const Environment& environment);

// Fills in the addresses at which engines listen and are reached. `address` is the flag's
// value. If it is empty, the address is the one by which this host reaches `coordinator`
// (HOST:PORT, the first of several). May wait for a name service. Fails with
// Failure::kUsage when there is no address.
absl::Status FindDataPlaneHost(const std::string& address, const std::string& coordinator,
                               DataPlanePlan& plan);

// Creates the directory if it is missing, and checks that files can be written there.
// Fails with Failure::kUsage otherwise.
absl::Status CheckJournalDir(const std::string& directory);

// Returns the default memory for a server's jobs: four fifths of what is free, since
// buffers and the rest of the process need memory, too. 0: unknown.
uint64_t MemoryForJobs(const ProcessLimits& limits);

// Returns the address for clients on this host. A wildcard in `listened` becomes this
// host.
std::string ReachableAddress(const std::string& listened);

// Returns the address for other hosts if it differs from ReachableAddress: for a
// wildcard, the address that most of them use. nullopt also if this host has no network.
std::optional<std::string> AddressForOthers(const std::string& listened);

}  // namespace syncline
