#include "cli/serve_flags.h"

#include <string>

#include "cli/flags.h"

namespace syncline {
namespace {

template <typename Value>
CLI::Option* Add(CLI::App& serve, const char* name, Value& value, const char* help) {
  return serve.add_option(name, value, help)->capture_default_str();
}

// Refuses an empty path. It usually comes from an unset variable, and the default file
// may not be the one that was meant.
std::string IsNamed(const std::string& path) { return path.empty() ? "is empty" : ""; }

// Adds the flags that say who may read what on the admin port.
void AddAdminFlags(CLI::App& serve, ServeFlags& flags) {
  Add(serve, "--admin-listen", flags.admin_listen,
      "Where dashboard, metrics, probes and status are served; beyond loopback by HTTPS, "
      "with --tls-cert and --tls-key");
  serve.add_flag("--admin-plain", flags.admin_plain,
                 "Serve them by plain HTTP even beyond loopback");
  Add(serve, "--admin-token-file", flags.admin_token_file,
      "File with the token that readers must send, except for probes; checked for "
      "changes every second; default: anyone who can reach the port may read")
      ->check(IsNamed);
}

// Adds the flags that say who may connect, and where this is logged.
void AddDoorFlags(CLI::App& serve, ServeFlags& flags) {
  Add(serve, "--audit-log", flags.audit_log,
      "File to which it adds a line of JSON for each peer that it refuses; a coordinator "
      "also for each member that it admits and each change of a job")
      ->check(IsNamed);
  Add(serve, "--revoked", flags.revoked,
      "File with the serial numbers of revoked certificates, which the coordinator "
      "refuses (`syncline certs revoke`); checked for changes every second")
      ->check(IsNamed);
  Add(serve, "--streams-per-certificate", flags.streams_per_certificate,
      "How many members may have the same certificate at once; lower it if each machine "
      "has its own, so that a stolen one is of little use");
}

// Adds the flags of a coordinator that is one of several.
void AddEtcdFlags(CLI::App& serve, ServeFlags& flags) {
  Add(serve, "--state", flags.state,
      "etcd://HOST:PORT,HOST:PORT/PREFIX: keep the coordinator's state there; if several "
      "coordinators share it, one leads and the others are standbys; default: "
      "--state-dir")
      ->check(IsNamed);
  Add(serve, "--etcd-ca", flags.etcd_tls.ca_file,
      "PEM file with the CA of etcd's certificates; default: plain text")
      ->check(IsNamed);
  Add(serve, "--etcd-cert", flags.etcd_tls.cert_file,
      "PEM file with this coordinator's certificate for etcd")
      ->check(IsNamed);
  Add(serve, "--etcd-key", flags.etcd_tls.key_file, "PEM file with its private key")
      ->check(IsNamed);
}

}  // namespace

void AddServeFlags(CLI::App& serve, ServeFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return Add(serve, name, value, help);
  };
  add("--role", flags.role, "all, coordinator or server");
  add("--listen", flags.listen, "Where the coordinator listens");
  AddAdminFlags(serve, flags);
  add("--advertise", flags.advertise, "HOST:PORT at which others reach this process");
  add("--state-dir", flags.state_dir,
      "Where the coordinator keeps its state; default $XDG_STATE_HOME/syncline or "
      "~/.local/state/syncline")
      ->check(IsNamed);
  AddEtcdFlags(serve, flags);
  add("--coordinator", flags.coordinator,
      "HOST:PORT of the coordinator, for --role server; several: HOST:PORT,HOST:PORT");
  add("--servers", flags.servers,
      "How many servers the coordinator waits for; 0: none, and workers that need "
      "servers are refused");
  add("--engine-threads", flags.engine_threads,
      "Engines of a server; 0: half of the cores");
  add("--memory", flags.memory,
      "Memory that the jobs of a server may take together, such as 8GiB; default 80 % of "
      "what is free on the machine or in its control group");
  add("--checkpoint-dir", flags.checkpoint_dir,
      "Where checkpoints of jobs are kept: the same directory for the coordinator and "
      "all servers, on several hosts a shared one, or s3://BUCKET/PREFIX "
      "(docs/checkpoints.md lists its variables); default: no checkpoints")
      ->check(IsNamed);
  add("--journal-dir", flags.journal_dir,
      "Where this server keeps the journals of jobs with durability=disk or disk+peer: a "
      "local directory, or a shared one; default: no journals")
      ->check(IsNamed);
  add("--journal-snapshot-factor", flags.journal_snapshot_factor,
      "A journal takes a snapshot, and deletes what is before it, once its records have "
      "this many times the bytes of weights and optimizer state (1 to 1000); 0: never");
  add("--drain-timeout", flags.drain_timeout,
      "How long a server that gets SIGTERM waits until other servers have backups of "
      "what "
      "jobs with durability=peer or disk+peer have here (12s, 2m); a second signal ends "
      "it");
  add("--rebalance", flags.rebalance,
      "auto: a coordinator moves shares of jobs with durability=peer or disk+peer to "
      "servers that join, from those that have at least two more; off, the default: "
      "shares stay");
  add("--data-plane", flags.data_plane,
      "How gradients and weights travel: auto (shared memory in a host, TLS 1.3 between "
      "hosts), tls, plain (neither sealed nor authenticated) or rdma");
  add("--data-plane-address", flags.data_plane_address,
      "Host or address at which workers reach this server's engines; default: the one "
      "that leads to the coordinator");
  add("--data-plane-ports", flags.data_plane_ports,
      "FIRST-LAST: where engines listen for workers of other hosts; default: any port");
  add("--rdma-fabric", flags.rdma_fabric,
      "Why rdma is safe: isolated (no one else is on the fabric) or ipsec");
  add("--failure-timeout", flags.failure_timeout,
      "How long a job may stand still after the death of a member");
  add("--patience", flags.patience,
      "How long a server keeps its jobs while the coordinator is away, and a coordinator "
      "keeps a job until a lost server returns with its journal: 90s, 5m; default: 30 "
      "times --failure-timeout, 5m where that is 10s");
  AddDoorFlags(serve, flags);
  add("--log-format", flags.log_format, "text or json");
  add("--log-level", flags.log_level, "debug, info, warning or error");
  AddTlsFlags(serve, &flags.tls);
}

}  // namespace syncline
