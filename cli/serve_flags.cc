#include "cli/serve_flags.h"

#include <string>

#include "cli/flags.h"

namespace syncline {
namespace {

template <typename Value>
CLI::Option* Add(CLI::App& serve, const char* name, Value& value, const char* help) {
  return serve.add_option(name, value, help)->capture_default_str();
}

// Not as an unset variable leaves it: the default may be another file than was meant.
std::string IsNamed(const std::string& path) { return path.empty() ? "is empty" : ""; }

// Who may read what on the admin port.
void AddAdminFlags(CLI::App& serve, ServeFlags& flags) {
  Add(serve, "--admin-listen", flags.admin_listen,
      "Where dashboard, metrics, probes and status are served; beyond loopback by HTTPS, "
      "with --tls-cert and --tls-key");
  serve.add_flag("--admin-plain", flags.admin_plain,
                 "Serve them by plain HTTP beyond loopback, too, on purpose");
  Add(serve, "--admin-token-file", flags.admin_token_file,
      "File with the token that whoever reads them must show, but for probes; looked at "
      "every second; default: anybody who reaches the port may read")
      ->check(IsNamed);
}

// Whom the coordinator lets in, and who reads of it later.
void AddDoorFlags(CLI::App& serve, ServeFlags& flags) {
  Add(serve, "--audit-log", flags.audit_log,
      "File to which it adds a line of JSON for whom it refuses at its ports; of a "
      "coordinator also for each member that it admits, and each change of a job")
      ->check(IsNamed);
  Add(serve, "--revoked", flags.revoked,
      "File with the serial numbers of certificates that the coordinator believes no "
      "more (`syncline certs revoke`); looked at every second")
      ->check(IsNamed);
  Add(serve, "--streams-per-certificate", flags.streams_per_certificate,
      "How many members may have the same certificate at once; lower it where each "
      "machine has its own, so that a stolen one takes little");
}

// One of several coordinators.
void AddEtcdFlags(CLI::App& serve, ServeFlags& flags) {
  Add(serve, "--state", flags.state,
      "etcd://HOST:PORT,HOST:PORT/PREFIX: keep the coordinator's state there; of several "
      "coordinators with the same one leads, and the others are standbys; default: "
      "--state-dir")
      ->check(IsNamed);
  Add(serve, "--etcd-ca", flags.etcd_tls.ca_file,
      "PEM file with the authority of etcd's certificates; default: plain text")
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
  add("--advertise", flags.advertise, "HOST:PORT by which others reach this process");
  add("--state-dir", flags.state_dir,
      "Where the coordinator keeps its state; default $XDG_STATE_HOME/syncline or "
      "~/.local/state/syncline")
      ->check(IsNamed);
  AddEtcdFlags(serve, flags);
  add("--coordinator", flags.coordinator,
      "HOST:PORT of the coordinator, for --role server; of several HOST:PORT,HOST:PORT");
  add("--servers", flags.servers,
      "How many servers the coordinator waits for; 0: there will be none, and workers "
      "that "
      "want one are refused");
  add("--engine-threads", flags.engine_threads,
      "Engines of a server; 0: half of the cores");
  add("--memory", flags.memory,
      "What the jobs of a server may take together, such as 8GiB; default 80 % of what "
      "the machine or its control group has left");
  add("--checkpoint-dir", flags.checkpoint_dir,
      "Where checkpoints of jobs are kept: the same directory for the coordinator and "
      "all servers, on several hosts a shared one, or s3://BUCKET/PREFIX "
      "(docs/checkpoints.md says which variables go with it); default: none are")
      ->check(IsNamed);
  add("--journal-dir", flags.journal_dir,
      "Where this server keeps the journals of jobs with durability=disk or disk+peer: a "
      "local "
      "directory, or a shared one; default: there are none")
      ->check(IsNamed);
  add("--journal-snapshot-factor", flags.journal_snapshot_factor,
      "A journal takes a snapshot, and deletes what is before it, once its records have "
      "so "
      "many times the bytes of weights and optimizer state (1 to 1000); 0: never");
  add("--drain-timeout", flags.drain_timeout,
      "How long a server that gets SIGTERM waits until other servers have backups of "
      "what "
      "jobs with durability=peer or disk+peer have here (12s, 2m); a second signal ends "
      "it");
  add("--data-plane", flags.data_plane,
      "How gradients and weights travel: auto (shared memory in a host, TLS 1.3 between "
      "hosts), tls, plain (neither sealed nor authenticated) or rdma");
  add("--data-plane-address", flags.data_plane_address,
      "Host or address by which workers reach this server's engines; default: the one "
      "that leads to the coordinator");
  add("--data-plane-ports", flags.data_plane_ports,
      "FIRST-LAST: where engines listen for workers of other hosts; default: any port");
  add("--rdma-fabric", flags.rdma_fabric,
      "Why rdma is safe: isolated (nobody else is on the fabric) or ipsec");
  add("--failure-timeout", flags.failure_timeout,
      "How long a job may stand still because somebody died");
  add("--patience", flags.patience,
      "How long a server keeps its jobs for a coordinator that is away, and a "
      "coordinator "
      "a job for a server that is to come back with its journal: 90s, 5m; default: 30 "
      "times --failure-timeout, 5m where that is 10s");
  AddDoorFlags(serve, flags);
  add("--log-format", flags.log_format, "text or json");
  add("--log-level", flags.log_level, "debug, info, warning or error");
  AddTlsFlags(serve, &flags.tls);
}

}  // namespace syncline
