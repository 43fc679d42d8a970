// What `syncline run` will start on this host, worked out from its flags before anything
// starts. Pure: the machine's cores and GPUs are inputs.
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

// The flags, named as torchrun names them where it has them.
struct RunOptions {
  std::vector<std::string> program;  // what each worker runs, with its arguments
  ProgramFlags program_flags;        // how it is started (cli/worker_program.h)
  int workers = 0;                   // of the whole job; 0: nproc-per-node on each node
  int min_workers = 0;  // go on while so many have not failed; 0: all are needed
  int servers = -1;     // on this host; -1: one, or none when a coordinator is given
  std::string nnodes = "1";
  std::string nproc_per_node;  // N, "auto", "cpu" or "gpu"; empty: from workers, or 1
  int node_rank = 0;
  bool standalone = false;
  int max_restarts = 0;  // of each worker
  // Before the second restart of a worker; doubles with each further one. The first is at
  // once: what was killed by accident should not miss a step more than it must.
  absl::Duration restart_pause = absl::Seconds(1);
  std::string tee = "0";  // streams to show as well as to log: 0..3, or "RANK:0..3,..."
  std::string redirects;  // streams to log only; default: all but rank 0's
  std::string log_dir;    // default: a temporary one, kept when the run fails
  std::string local_ranks_filter;  // of those whose output is shown; empty: as above
  std::string coordinator;         // host:port; empty: start one here
  // What torchrun's rendezvous would be told (cli/torchrun.h).
  std::string rdzv_backend;
  std::string rdzv_endpoint;
  std::vector<std::string> without_effect;  // flags of torchrun that were given
  std::string master_addr;  // of the workers; empty: the coordinator's host
  int master_port = 0;      // 0: one that is free, where it can be chosen
  std::string local_addr;   // of this host, for torch.distributed
  std::string role = "default";
  std::string job = "default";
  std::string run_id;  // tells two runs of one job apart; equal on all nodes of a run
  std::string failure_timeout = "10s";
  std::string patience;        // for a coordinator that is away; empty: the default
  int engine_threads = 0;      // per server; 0: the server's own default
  std::string data_plane;      // of the servers that are started here; empty: auto
  std::string checkpoint_dir;  // of the services that are started here; empty: none
  std::string journal_dir;     // of the services that are started here; empty: none
  std::optional<double> journal_snapshot_factor;  // of services that are started here
  std::string mode;  // "ssp:staleness=3"; empty: the program's
  std::map<std::string, std::string, std::less<>> settings = {};  // of the job, by name
  std::set<std::string> given_empty = {};  // those of them whose flags have no value
  bool local_aggregation = false;  // the workers of a host are one member of their job
  std::vector<std::pair<std::string, std::string>> env = {};  // of every worker, besides
  bool advises = true;  // errors name flags that would have helped: those of syncline run
  TlsOptions tls;

  // What a flag says of a setting of the job (comm/job/job_settings.h); empty: the
  // program's.
  std::string Setting(std::string_view name) const;
};

struct Machine {
  int cores = 1;
  int gpus = 0;
  uint64_t memory_for_jobs = 0;  // on all servers together; 0: not known
  std::string about_gpus = {};   // what the driver says, for people
};

struct WorkerPlan {
  int rank = 0;
  std::string name;  // "worker3"
  Output out = Output::kInherit;
  Output err = Output::kInherit;
  uint32_t member = 0;    // as which the coordinator knows it (MemberOf)
  bool is_leader = true;  // of that member: with local aggregation one of a host's
  std::string within =
      {};  // "its rank 3: ", in what is told of the member; of leaders ""
  // All but the coordinator's address.
  std::vector<std::pair<std::string, std::string>> env;
};

struct LaunchPlan {
  int world_size = 1;
  int min_workers = 1;
  int servers = 1;
  uint64_t server_memory_bytes = 0;  // of each, for jobs; 0: its own default
  bool starts_coordinator = true;
  absl::Duration failure_timeout;
  absl::Duration patience;
  std::vector<WorkerPlan> workers;  // of this host
};

// Of --nnodes.
bool IsOneNode(const std::string& nnodes);

// Of which member of the job worker `rank` of this host is a part: itself, or with local
// aggregation the host.
uint32_t MemberOf(const RunOptions& options, int rank);

// InvalidArgument (Failure::kUsage) when the flags contradict each other.
absl::StatusOr<LaunchPlan> MakeLaunchPlan(const RunOptions& options,
                                          const Machine& machine);

}  // namespace syncline
