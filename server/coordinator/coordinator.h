// The coordinator: membership, placement and decisions of all jobs, as a pure state
// machine.
//
// Apply takes one input and the time, and returns what must happen outside: messages to
// members, connections to close, state to store, lines to log, and slow computations
// (preparation.h). It uses no socket, file, clock, thread or random device.
//
// A member is identified by its connection: a number that the shell gives to each link. A
// link may use several streams, one after the other (server/service/link_table.h). A
// restarted worker is a new incarnation of its rank, and a restarted server a new
// incarnation of the server. Between its hello and its job a worker is a newcomer
// (declarations.h).
//
// An epoch is a list of members. It changes in two phases (server/shard/shard.h).
// PrepareEpoch goes to all servers of the job, and their answers give the first step that
// no server has completed. CommitEpoch carries the members. When all servers have
// committed, the workers are told. One change is under way at a time; whatever happens
// meanwhile is part of the next one.
//
// Thread safety: none; the shell calls it under a lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/base/patience.h"
#include "comm/base/secret_key.h"
#include "comm/base/step_durations.h"
#include "comm/base/step_phases.h"
#include "comm/base/timeouts.h"
#include "comm/transport/tcp/member_key.h"
#include "server/coordinator/backup.h"
#include "server/coordinator/checkpoint_orders.h"
#include "server/coordinator/decision.h"
#include "server/coordinator/events.h"
#include "server/coordinator/job_spec.h"
#include "server/coordinator/preparation.h"
#include "server/coordinator/slowest_worker.h"
#include "server/coordinator/trace_targets.h"
#include "server/coordinator/views.h"

namespace syncline {

// ---- What members say ----

// The decision about a step, with everything that later decisions depend on, so that any
// server that remembers it can restore a restarted coordinator.
struct StepDecision {
  uint32_t job = 0;
  uint64_t step = 0;
  Decision decision = {};
  LossScalerState scaler = {};  // after this step
  uint64_t skipped = 0;         // number of steps skipped so far, including this one
};
// A job with a quorum: these incarnations have contributed to all blocks of the shard so
// far, and they are enough.
struct StepHeld {
  uint32_t job = 0;
  uint32_t shard = 0;
  uint64_t step = 0;
  std::vector<uint32_t> incarnations = {};  // ascending
};
// The step is made of the contributions of these incarnations, on all shards.
struct StepClosed {
  uint32_t job = 0;
  uint64_t step = 0;
  std::vector<uint32_t> incarnations = {};  // ascending
};
// What a returning server still holds of a job (held_job.h).
struct HeldJob {
  uint32_t job = 0;
  uint64_t prepared = 0;   // last epoch that it prepared
  uint64_t committed = 0;  // last epoch that it committed
  uint64_t cut = 0;        // last step that a checkpoint was ordered for or written of
  std::optional<StepDecision> decided = std::nullopt;  // last decision
  std::optional<StepClosed> closed = std::nullopt;     // last closed step
  std::string run = {};                                // the run of its journal
};
// A run of a job whose records a server has on its disk (server/journal).
struct JournaledRun {
  std::string job = {};  // folder of the job's name (server/checkpoint/manifest.h)
  std::string run = {};
  std::vector<uint32_t> shards = {};
  std::vector<uint32_t> generations = {};  // one for each shard; missing: 0

  uint32_t GenerationOf(size_t shard) const {
    return shard < generations.size() ? generations[shard] : 0;
  }
};
struct ServerHello {
  std::string name = {};
  std::vector<std::string> shard_addresses = {};
  std::string lanes = {};
  std::string lanes_because = {};
  uint64_t memory_bytes = 0;  // memory for all of its jobs together; 0: unknown
  // Set by a server that was attached before the coordinator was restarted.
  std::optional<ServerIdentity> identity = std::nullopt;
  std::vector<HeldJob> held = {};
  std::vector<JournaledRun> journals = {};  // runs that it can restore
  std::optional<StandInFor> stand_in = std::nullopt;
  uint64_t session_key = 0;        // stand-ins only; drawn by the shell
  SecretKey key = {};              // stand-ins only; drawn by the shell
  bool feeds_two_backups = false;  // one of which is to replace the other
};
// A worker's membership, with which it continues under a restarted coordinator.
struct HeldMembership {
  uint32_t job = 0;
  uint32_t incarnation = 0;
  uint64_t session_key = 0;
  uint64_t epoch = 0;
  uint64_t step = 0;
  std::optional<uint64_t> barrier = std::nullopt;  // the one it is in
  uint64_t barriers = 0;  // number of the job's barriers that it knows to be over
};
struct WorkerHello {
  std::string job = {};     // name
  std::string digest = {};  // of the JobDeclaration, which is sent on request only
  uint64_t job_bytes = 0;   // size of the JobDeclaration
  uint32_t rank = 0;
  std::string run_id = {};
  std::string name = {};
  uint64_t session_key = 0;  // drawn by the shell
  SecretKey key = {};  // drawn by the shell; its keys for servers are derived from it
  std::optional<HeldMembership> member = std::nullopt;  // set by a returning worker
  // A restarted worker that wants to rejoin the run that its rank was a member of.
  bool rejoins = false;
};
// The declaration that a WorkerHello announced.
struct JobDeclaration {
  std::shared_ptr<const std::string> bytes;
};
// A server's progress in one job, and what it waits for (server/shard/shard.h).
struct JobProgress {
  struct Member {
    uint32_t rank = 0;
    uint32_t owed = 0;   // blocks that others wait for and that lack its contribution
    uint32_t waits = 0;  // blocks that hold its contribution or its request for a view
    uint64_t contributed = 0;  // contributions of all its incarnations; never decreases
    uint64_t moved = 0;        // `contributed` plus the views that reached it
  };
  uint32_t job = 0;
  uint64_t step = 0;  // lowest step that a member waits for
  uint32_t trained = 0;
  uint32_t undecided = 0;
  uint32_t unseeded = 0;
  uint64_t completed = 0;
  uint64_t backup_bytes = 0;         // bytes sent to the present backup
  std::vector<Member> members = {};  // in rank order
  ServerPhases phases = {};          // of its slowest engine
  std::optional<RecordProgress> records = std::nullopt;  // of its journal or backup
};
struct Heartbeat {
  uint64_t step = 0;
  uint64_t bytes = 0;
  bool waiting = false;                 // workers: a thread is in Wait or Barrier
  CompressionFigures compression = {};  // workers
  absl::Duration silent = {};           // servers: how long an engine has not answered
  std::vector<JobProgress> jobs = {};   // servers
  WorkerPhases phases = {};             // workers
  uint64_t samples = 0;                 // workers
  StepDurations durations = {};         // workers
  double window_fill = 0;               // workers: bytes under way over the window
};
struct Leave {
  std::string why = {};  // workers: the error that made it leave; empty: none
};
struct LossReport {
  uint64_t step = 0;
  double loss = 0;  // mean over the worker's samples
  uint32_t samples = 1;
};
struct BarrierEntered {
  uint64_t barrier = 0;
};
struct JobConfigured {
  uint32_t job = 0;
  // For a job that was restored from records: the step that all trained blocks have
  // reached.
  uint64_t step = 0;
};
// The server cannot create the job, or cannot continue it.
struct ConfigureFailed {
  uint32_t job = 0;
  absl::Status status;
};
struct EpochPrepared {
  uint32_t job = 0;
  uint64_t epoch = 0;
  uint64_t next_step = 0;
};
struct EpochCommitted {
  uint32_t job = 0;
  uint64_t epoch = 0;
  std::string run = {};  // the run of its journal; empty: no journal
};
struct BlockFigures {
  uint32_t job = 0;
  uint32_t block = 0;
  uint64_t step = 0;
  std::vector<double> figures = {};
};
// A server has written its part of a checkpoint, or failed to.
struct CheckpointWritten {
  uint32_t job = 0;
  uint64_t step = 0;
  absl::Status status = {};
  std::vector<CheckpointFile> files = {};
  TrainingSettings training = {};  // in force at that step
  absl::Duration took = {};
};
// The stream ended, for any reason. The member may return on another one.
struct Disconnected {};
// The member has a new stream, and missed no message.
struct Returned {};

using MemberBody =
    std::variant<ServerHello, WorkerHello, Heartbeat, Leave, BarrierEntered,
                 JobConfigured, ConfigureFailed, EpochPrepared, EpochCommitted,
                 BlockFigures, LossReport, JobDeclaration, CheckpointWritten,
                 Disconnected, Returned, StepHeld, BackupLost, BackedUp, Drain,
                 JournalLost, JournalWhole>;

struct FromMember {
  ConnectionId connection = 0;
  MemberBody body;
};
// The first input. Its outputs must be stored before any other input is applied.
struct Start {};
// Time passes: leases end, and waiting is reported. At least once every heartbeat
// interval.
struct Tick {};

// ---- Calls, by operators and launchers. Each has one CallAnswer among its outputs. ----

// Changes options of a running job.
struct UpdateJob {
  std::string job = {};
  OptionValues optimizer = {};  // new values; other options stay
  std::optional<NamedOptions> schedule = std::nullopt;
  std::optional<NamedOptions> mode = std::nullopt;    // mode_change.h
  std::optional<std::string> goals = std::nullopt;    // comm/job/goals.h
  std::optional<std::string> answers = std::nullopt;  // comm/job/answers.h

  // Whether servers and workers must hear of it: goals and answers concern only the
  // coordinator.
  bool IsOfTraining() const { return !optimizer.empty() || schedule || mode; }
};
// Orders a checkpoint of a running job.
struct CreateCheckpoint {
  std::string job = {};
};
// Ends a server once it is not needed any more (coordinator_drain.cc).
struct DrainServer {
  std::string server = {};  // name or number
  bool force = false;       // even if a job fails or stands still because of it
};
// Removes a worker from its job, as the answer to a straggler does (goal_answers.h). For
// the simulation (tests/sim).
struct ExcludeWorker {
  std::string job = {};
  uint32_t rank = 0;
  std::string why = {};
  std::optional<uint32_t> incarnation = std::nullopt;  // empty: the present one
};
// A launcher reports that a worker's process has failed. Not authenticated by the worker.
struct WorkerExit {
  std::string job = {};
  std::string run_id = {};
  uint32_t rank = 0;
  std::string how = {};   // "signal 9 (Killed)"
  std::string then = {};  // "started again (1 of 3)"; empty: unknown
  std::string said = {};  // the program's last lines; empty: unknown
};
// A launcher was told to end, and stops its workers (job_stop.cc). Not authenticated.
struct LauncherStop {
  std::string job = {};
  std::string run_id = {};
  std::vector<uint32_t> ranks = {};  // ranks on its host
  std::string why = {};              // "SIGINT (Ctrl-C)"
  std::string host = {};
  bool of_this_job_alone = false;  // the caller's certificate is limited to this job
};

using CoordinatorInput = std::variant<FromMember, Tick, UpdateJob, CreateCheckpoint,
                                      DrainServer, ExcludeWorker, WorkerExit,
                                      LauncherStop, Prepared, CheckpointAnswer, Start>;

// ---- What the coordinator says ----

struct ServerWelcome {
  uint32_t server = 0;
  uint32_t incarnation = 0;
};
struct ConfigureJob {
  uint32_t job = 0;
  std::shared_ptr<const DeclaredJob> declared = {};
  std::shared_ptr<const JobPlacement> placement = {};
  uint32_t first_shard = 0;
  uint32_t checkpoint_run = 0;  // part of its checkpoints' names; 0: nothing is saved
  std::optional<CheckpointName> resume_from = std::nullopt;
  // Not empty: the server replaces a lost one, and restores its records of that run.
  std::string restore_run = {};
  uint32_t generation = 0;  // of these records
  // Set for a stand-in that holds a server's backup: where its records come from.
  std::optional<BackupPair> backup = std::nullopt;
};
// Requests the declaration that a WorkerHello announced.
struct DescribeJob {
  std::string digest = {};
};
struct PrepareEpoch {
  uint32_t job = 0;
  uint64_t epoch = 0;
};
struct MemberRecord {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  uint64_t first_step = 0;
  uint64_t session_key = 0;
  // The worker's key. It is never sent: each server receives a key that is derived from
  // it for this server alone (comm/transport/tcp/member_key.h), and reads that one here.
  SecretKey key = {};

  bool operator==(const MemberRecord&) const = default;
};
struct CommitEpoch {
  uint32_t job = 0;
  uint64_t epoch = 0;
  std::vector<MemberRecord> members = {};  // in rank order
  std::string reason = {};
  std::optional<TrainingSettings> training =
      std::nullopt;            // new settings, if they change
  uint64_t training_from = 0;  // their first step
  ServerIdentity server = {};  // the receiver
};
// Orders a copy of all blocks at version `step`, for a checkpoint (server/shard/shard.h).
struct CutAt {
  uint32_t job = 0;
  uint64_t step = 0;
  bool last = false;   // no member is left
  bool again = false;  // repeats the last cut, whose files could not be written
};
struct DropJob {
  uint32_t job = 0;
  std::string reason = {};
};
struct Waiting {
  std::string reason = {};
};
struct WorkerWelcome {
  uint32_t job = 0;
  uint32_t incarnation = 0;
  uint64_t session_key = 0;
  uint64_t epoch = 0;
  uint64_t first_step = 0;
  bool seeder = false;
  // Shared by the welcomes of all workers.
  std::shared_ptr<const std::vector<std::string>> shard_addresses = {};
  std::shared_ptr<const JobPlacement> placement = {};
  uint32_t members = 0;
  ContributionPlan contributions = {};
  uint64_t barriers = 0;  // number of the job's barriers that are over
  uint32_t rank = 0;      // the receiver
  SecretKey key = {};     // never sent: the keys for the servers are derived from it
  std::vector<ServerIdentity> shard_servers = {};  // one for each shard
  std::optional<uint64_t> staleness = {};  // mode ssp: the value that all servers have
};
// The new place of a shard, after another server took it over.
struct MovedShard {
  uint32_t shard = 0;
  uint64_t epoch = 0;  // the first epoch in which it is there
  std::string address = {};
  ServerIdentity server = {};
};
struct EpochChanged {
  uint64_t epoch = 0;
  uint32_t members = 0;
  bool seeder = false;
  std::string reason = {};
  std::vector<MovedShard> moved = {};      // all that moved since the job began
  std::optional<uint64_t> staleness = {};  // mode ssp: the value that all servers have
  // The receiver. The key is never sent: the keys for the servers are derived from it.
  MemberIdentity member = {};
  SecretKey key = {};
};
struct BarrierReleased {
  uint64_t barrier = 0;   // number of the barrier, as the worker counts them
  uint64_t barriers = 0;  // number of the job's barriers that are over
};
struct JobFailed {
  std::string reason = {};
};

using CoordinatorBody =
    std::variant<ServerWelcome, ConfigureJob, PrepareEpoch, CommitEpoch, StepDecision,
                 DropJob, Waiting, WorkerWelcome, EpochChanged, BarrierReleased,
                 JobFailed, DescribeJob, CutAt, StepClosed, HoldBackup, BackupAt,
                 BackupGone, TakeOver, Drained, EndServer, JournalGone, SlowestWorker>;

struct ToMember {
  ConnectionId connection = 0;
  CoordinatorBody body;
};
// Ends the stream with this status: a refusal, a drop (Aborted) or a clean end (OK).
struct CloseMember {
  ConnectionId connection = 0;
  absl::Status status;
};
// State that belongs to no job. It must be stored before any later output is acted upon.
struct PersistState {
  std::string state = {};
};
// State of a running job, stored under `key` in the same order. Null: delete the record.
struct StoreRecord {
  std::string key = {};
  std::shared_ptr<const std::string> value = {};
};
struct LogReason {
  std::string text = {};
  // Warning: a refusal, or a loss that the job survives. Error: a job ends.
  enum class Level { kInfo, kWarning, kError } level = Level::kInfo;
};
// The effect of an UpdateJob.
struct ChangedSettings {
  uint64_t epoch = 0;                     // the epoch with whose first step they begin
  std::vector<std::string> changes = {};  // "lr from 0.1 to 0.01"; empty: none
};
// The answer to a call. A call that fails changes nothing: InvalidArgument names the
// option, NotFound the job or server, FailedPrecondition says why it is not possible now.
struct CallAnswer {
  absl::Status status;
  ChangedSettings changed = {};  // UpdateJob
  // CreateCheckpoint: the number of checkpoints finished before.
  uint64_t finished_checkpoints = 0;
  uint32_t server = 0;           // DrainServer
  std::string server_name = {};  // DrainServer
};
// Orders a slow computation, whose result is an input (Prepared).
struct Prepare {
  Preparation order;
};
using CoordinatorOutput =
    std::variant<ToMember, CloseMember, PersistState, LogReason, CallAnswer, Prepare,
                 CheckpointOrder, StoreRecord, CoordinatorEvent>;
using CoordinatorOutputs = std::vector<CoordinatorOutput>;

struct CoordinatorOptions {
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  uint32_t expected_servers = 1;   // number of attached servers with which jobs begin
  bool keeps_checkpoints = false;  // the shell carries out CheckpointOrders
  // How long a job whose servers keep journals waits for a lost server.
  absl::Duration patience = DefaultPatience(kDefaultFailureTimeout);
  // Name of the server in this process, which cannot end without it; empty: none.
  std::string own_server = {};
  // Shares of jobs with backups move from servers that have two to those that have none.
  bool spreads_shares = true;
};

// What the coordinator's previous process had stored.
struct StoredState {
  std::string state = {};                           // the last PersistState
  std::map<std::string, std::string> records = {};  // StoreRecords, by key
};

class Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);
  ~Coordinator();

  // Continues from a stored state: epochs and incarnations keep growing across restarts,
  // and running jobs wait for their members to return (job_restore.cc). DataLoss: the
  // state cannot be read.
  absl::Status Restore(const StoredState& stored, const DeclarationReader& reader);
  // Number of this coordinator's start, from 1. Members ignore a coordinator with a lower
  // term than one they know.
  uint64_t term() const;

  CoordinatorOutputs Apply(const CoordinatorInput& input, absl::Duration now);

  CoordinatorView View(absl::Duration now) const;

  // NotFound: no job of that name is running.
  absl::StatusOr<TraceTargets> TraceTargetsOf(const std::string& job) const;

  // When the next Tick is due, if earlier than by its period; infinite otherwise.
  absl::Duration wake_at() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace syncline
