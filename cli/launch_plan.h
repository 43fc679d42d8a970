// Computes from the flags of `syncline run` what it will start on this host, before
// anything starts. Pure functions: the machine's cores and GPUs are inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/process.h"
#include "cli/worker_program.h"
#include "comm/rpc/tls.h"

namespace syncline {

// The flags of `syncline run`. Those that torchrun has, too, have torchrun's names.
struct RunOptions {
  std::vector<std::string> program;  // the command of each worker, with its arguments
  ProgramFlags program_flags;        // how the program is started (cli/worker_program.h)
  int workers = 0;                   // in the whole job; 0: nproc-per-node times nodes
  // The job continues while at least this number of workers has not failed. 0: all of
  // them.
  int min_workers = 0;
  int servers = -1;  // Servers on this host. -1: one, or none if `coordinator` is set.
  std::string nnodes = "1";
  std::string nproc_per_node;  // N, "auto", "cpu" or "gpu"; empty: from `workers`, or 1
  int node_rank = 0;
  bool standalone = false;
  int max_restarts = 0;  // per worker
  // Pause before the second restart in a row of a worker; doubles with each further one.
  // The first restart is immediate: a worker that was killed by accident should miss as
  // few steps as possible.
  absl::Duration restart_pause = absl::Seconds(1);
  // Streams that are both shown and logged: 0..3, or "RANK:0..3,...".
  std::string tee = "0";
  std::string redirects;  // streams that are only logged; empty: all but rank 0's
  std::string log_dir;    // empty: a temporary one, which is kept when the run fails
  // Local ranks whose output is shown. Empty: see `redirects`.
  std::string local_ranks_filter;
  std::string coordinator;  // HOST:PORT; empty: start one here
  // Flags of torchrun's rendezvous (cli/torchrun.h).
  std::string rdzv_backend;
  std::string rdzv_endpoint;
  // torchrun flags that were given and do nothing here
  std::vector<std::string> without_effect;
  std::string master_addr;  // for torch.distributed; empty: the coordinator's host
  int master_port = 0;      // 0: a free one, if the launcher may choose it
  std::string local_addr;   // this host's address, for torch.distributed
  std::string role = "default";
  std::string job = "default";
  std::string run_id;  // Distinguishes two runs of one job; equal on all nodes of a run.
  std::string failure_timeout = "10s";
  std::string patience;    // how long to wait for a lost coordinator; empty: the default
  int engine_threads = 0;  // per server; 0: the server's default
  std::string data_plane;  // of servers started here; empty: auto
  std::string checkpoint_dir;                     // of services started here; empty: none
  std::string journal_dir;                        // of services started here; empty: none
  std::optional<double> journal_snapshot_factor;  // of services started here
  std::string mode;  // such as "ssp:staleness=3"; empty: the program's
  std::map<std::string, std::string, std::less<>> settings = {};  // of the job, by name
  // names of the settings whose flags were given without a value
  std::set<std::string> given_empty = {};
  bool local_aggregation = false;  // all workers of a host are one member of the job
  std::string trainjob_status = "auto";  // "auto" or "never" (cli/trainjob)
  std::vector<std::pair<std::string, std::string>> env = {};  // added for every worker
  bool advises = true;  // Errors suggest flags of `syncline run` that would have helped.
  TlsOptions tls;

  // Returns a flag's value of a job setting (comm/job/job_settings.h). Empty: the program
  // decides.
  std::string Setting(std::string_view name) const;
};

struct Machine {
  int cores = 1;
  int gpus = 0;
  uint64_t memory_for_jobs = 0;  // that all servers together may use for jobs; 0: unknown
  std::string about_gpus = {};   // the driver's description, for people
};

struct WorkerPlan {
  int rank = 0;
  std::string name;  // "worker3"
  Output out = Output::kInherit;
  Output err = Output::kInherit;
  uint32_t member = 0;  // its number for the coordinator (MemberOf)
  // With local aggregation one worker per host leads the member; otherwise every worker.
  bool is_leader = true;
  // Prefix of messages about a member, such as "its rank 3: ". Empty for its leader.
  std::string within = {};
  // Environment variables, except the coordinator's address.
  std::vector<std::pair<std::string, std::string>> env;
};

struct LaunchPlan {
  int world_size = 1;
  int min_workers = 1;
  int servers = 1;
  uint64_t server_memory_bytes = 0;  // of each server, for jobs; 0: the server's default
  bool starts_coordinator = true;
  absl::Duration failure_timeout;
  absl::Duration patience;
  std::vector<WorkerPlan> workers;  // on this host
};

// Whether a value of --nnodes means one node.
bool IsOneNode(const std::string& nnodes);

// Returns the member of the job to which worker `rank` of this host belongs: the worker
// itself, or with local aggregation the host.
uint32_t MemberOf(const RunOptions& options, int rank);

// Fails with InvalidArgument (Failure::kUsage) when the flags contradict each other.
absl::StatusOr<LaunchPlan> MakeLaunchPlan(const RunOptions& options,
                                          const Machine& machine);

}  // namespace syncline
