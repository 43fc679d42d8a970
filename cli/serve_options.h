// What `syncline serve` was asked to do, and what follows from it.
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

// The flags as they were written.
struct ServeFlags {
  std::string role = "all";
  std::string listen = "127.0.0.1:7070";
  std::string admin_listen = "127.0.0.1:7071";
  bool admin_plain = false;
  std::string admin_token_file;
  std::string advertise;
  std::string state_dir;
  std::string state;  // "etcd://…"; empty: state_dir
  EtcdTls etcd_tls;
  std::string coordinator = "127.0.0.1:7070";
  int servers = 1;
  int engine_threads = 0;
  std::string checkpoint_dir;
  std::string journal_dir;
  double journal_snapshot_factor = kSnapshotFactor;
  std::string memory;  // "8GiB"; empty: MemoryForJobs
  std::string data_plane = "auto";
  std::string data_plane_address;
  std::string data_plane_ports;
  std::string rdma_fabric;
  std::string failure_timeout = "10s";
  std::string patience;  // "5m"; empty: so many failure timeouts
  std::string drain_timeout = "45s";
  std::string audit_log;
  std::string revoked;
  int streams_per_certificate = static_cast<int>(kMaxWorkers);
  std::string log_format = "text";
  std::string log_level = "info";
  TlsOptions tls;
};

// The same, checked and with defaults filled in.
struct ServePlan {
  bool has_coordinator = false;
  bool has_server = false;
  std::string listen;
  std::string admin_listen;
  bool admin_seals = false;      // the admin port speaks TLS
  std::string admin_token_file;  // empty: anybody who reaches it may read
  std::string advertise;         // empty: the address that is listened on
  std::string state_dir;
  std::optional<EtcdAddress> etcd = std::nullopt;  // in place of state_dir
  EtcdTls etcd_tls = {};
  std::string coordinator;  // of a server that is alone; perhaps several
  uint32_t servers = 1;
  uint32_t engines = 1;
  uint64_t memory_bytes = 0;  // for the jobs of a server; 0: not said
  DataPlanePlan data_plane = {};
  // Where servers are reached, if it is not to be found out: an address or a name.
  std::string data_plane_address;
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  absl::Duration patience;  // of a server, for a coordinator that is away
  // How long a server that is told to end waits until others have what it has.
  absl::Duration drain_timeout;
  LogOptions log = {};
  std::string audit_log;  // empty: none
  std::string revoked;    // of a coordinator; empty: none
  size_t streams_per_certificate = kMaxWorkers;
  std::string checkpoint_dir;  // empty: none
  std::string journal_dir;     // of a server; empty: none
  double journal_snapshot_factor = kSnapshotFactor;
  TlsOptions tls = {};
};

// $XDG_STATE_HOME/syncline, or ~/.local/state/syncline. Failure::kUsage without both.
absl::StatusOr<std::string> DefaultStateDir(const Environment& environment);

// `cores` of this machine decide how many engines there are by default. Errors are
// Failure::kUsage and name the flag.
absl::StatusOr<ServePlan> MakeServePlan(const ServeFlags& flags, int cores,
                                        const Environment& environment);

// Fills in where engines listen and are reached. `address` is the flag, and may be empty;
// then it is the address of this host that leads to `coordinator` (HOST:PORT, the first of
// several). May wait
// for a name service. Failure::kUsage when there is none.
absl::Status FindDataPlaneHost(const std::string& address, const std::string& coordinator,
                               DataPlanePlan& plan);

// Makes it if it is missing, and tries whether it takes files. Failure::kUsage otherwise.
absl::Status CheckJournalDir(const std::string& directory);

// What a server's jobs may take where nobody says it: four fifths of what is left, since
// buffers and the rest of the process need memory, too. 0 when that is not known.
uint64_t MemoryForJobs(const ProcessLimits& limits);

// Where others reach what listens on `listened`: a wildcard host stands for this host.
std::string ReachableAddress(const std::string& listened);

// Where other hosts do, if that is another address: of a wildcard, the one by which most
// of them come. nullopt also where this host has no network.
std::optional<std::string> AddressForOthers(const std::string& listened);

}  // namespace syncline
