// The coordinator: membership, placement and decisions of all jobs, as a pure state
// machine.
//
// Apply takes one input and the time and returns what has to happen outside: messages to
// members, connections to close, state to persist, lines to log, and what takes long
// (preparation.h). No socket, file, clock, thread or random device.
//
// Members are known by the connection they speak on (a number the shell gives to each
// link; a link may have several streams in turn, server/service/link_table.h). A worker
// that comes back is a new incarnation of its rank; a server that comes back is a new
// incarnation too. Between its hello and its job a worker is a newcomer (declarations.h).
//
// An epoch is a list of members. It changes in two phases (server/shard/shard.h):
// PrepareEpoch to all servers of the job, their answers give the first step that nobody
// completed, CommitEpoch carries the members, and when all have committed the workers are
// told. One change is under way at a time; what happens meanwhile goes into the next one.
//
// Thread safety: none; the shell serialises.
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
#include "server/coordinator/trace_targets.h"
#include "server/coordinator/views.h"

namespace syncline {

// ---- What members say ----

// What servers are told of a step, with all that the next decisions depend on: one server
// that remembers it can tell a coordinator that was started anew.
struct StepDecision {
  uint32_t job = 0;
  uint64_t step = 0;
  Decision decision = {};
  LossScalerState scaler = {};  // after it
  uint64_t skipped = 0;         // steps, with this one
};
// Of a job with a quorum: so far these lives have contributed to all blocks of that shard,
// and they are enough.
struct StepHeld {
  uint32_t job = 0;
  uint32_t shard = 0;
  uint64_t step = 0;
  std::vector<uint32_t> incarnations = {};  // ascending
};
// The step is made of what these lives gave, on all shards.
struct StepClosed {
  uint32_t job = 0;
  uint64_t step = 0;
  std::vector<uint32_t> incarnations = {};  // ascending
};
// What a server that comes back still has of a job (held_job.h).
struct HeldJob {
  uint32_t job = 0;
  uint64_t prepared = 0;  // the last epochs
  uint64_t committed = 0;
  uint64_t cut = 0;  // no checkpoint of a later step was ordered or written
  std::optional<StepDecision> decided = std::nullopt;  // the last one
  std::optional<StepClosed> closed = std::nullopt;     // likewise
  std::string run = {};                                // of its journal
};
// A run of a job of which a server has records on its disk (server/journal).
struct JournaledRun {
  std::string job = {};  // the folder of its name (server/checkpoint/manifest.h)
  std::string run = {};
  std::vector<uint32_t> shards = {};
  std::vector<uint32_t> generations = {};  // of each; none: 0

  uint32_t GenerationOf(size_t shard) const {
    return shard < generations.size() ? generations[shard] : 0;
  }
};
struct ServerHello {
  std::string name = {};
  std::vector<std::string> shard_addresses = {};
  std::string lanes = {};
  std::string lanes_because = {};
  uint64_t memory_bytes = 0;  // what its jobs may take together; 0: not known
  // Of one that another life of the coordinator had taken in, and that lives on.
  std::optional<ServerIdentity> identity = std::nullopt;
  std::vector<HeldJob> held = {};
  std::vector<JournaledRun> journals = {};  // what it could take up again
  std::optional<StandInFor> stand_in = std::nullopt;
  uint64_t session_key = 0;  // of a stand-in: drawn by the shell
  SecretKey key = {};        // likewise
};
// By which a worker goes on under a coordinator that was started anew.
struct HeldMembership {
  uint32_t job = 0;
  uint32_t incarnation = 0;
  uint64_t session_key = 0;
  uint64_t epoch = 0;
  uint64_t step = 0;
  std::optional<uint64_t> barrier = std::nullopt;  // the one it is in
  uint64_t barriers = 0;                           // of the job that it knows to be over
};
struct WorkerHello {
  std::string job = {};  // its name
  // Of its declaration, which is only sent when it is asked for.
  std::string digest = {};
  uint64_t job_bytes = 0;
  uint32_t rank = 0;
  std::string run_id = {};
  std::string name = {};
  uint64_t session_key = 0;  // drawn by the shell
  SecretKey key = {};        // likewise: all that it shares with servers comes from it
  std::optional<HeldMembership> member = std::nullopt;  // of one that comes back
  // As another process or session of a worker that was in a run, with which it means to go on.
  bool rejoins = false;
};
// What its hello announced.
struct JobDeclaration {
  std::shared_ptr<const std::string> bytes;
};
// What a server holds of one job, and what it waits for (server/shard/shard.h).
struct JobProgress {
  struct Member {
    uint32_t rank = 0;
    uint32_t owed = 0;   // blocks that others wait for and that lack its contribution
    uint32_t waits = 0;  // blocks that hold its contribution, or its wish for a view
    uint64_t contributed = 0;  // of all its lives, only growing
    uint64_t moved = 0;        // the same, with the views that reached it
  };
  uint32_t job = 0;
  uint64_t step = 0;  // the lowest that somebody waits for
  uint32_t trained = 0;
  uint32_t undecided = 0;
  uint32_t unseeded = 0;
  uint64_t completed = 0;
  uint64_t backup_bytes = 0;         // that have crossed to the present one
  std::vector<Member> members = {};  // in rank order
  ServerPhases phases = {};          // of its slowest engine
  std::optional<RecordProgress> records = std::nullopt;  // of its journal or backup
};
struct Heartbeat {
  uint64_t step = 0;
  uint64_t bytes = 0;
  bool waiting = false;                 // of workers: somebody is in Wait or Barrier
  CompressionFigures compression = {};  // of workers
  absl::Duration silent = {};          // of servers: an engine did not answer for so long
  std::vector<JobProgress> jobs = {};  // of servers
  WorkerPhases phases = {};            // of workers
  uint64_t samples = 0;                // likewise
  StepDurations durations = {};        // likewise
};
struct Leave {
  std::string why = {};  // of workers: the error behind it; empty: none
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
  // Of one that was restored from records: what its trained blocks have all reached.
  uint64_t step = 0;
};
// The server cannot make the job, or cannot go on with it.
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
  std::string run = {};  // of its journal; empty: it has none
};
struct BlockFigures {
  uint32_t job = 0;
  uint32_t block = 0;
  uint64_t step = 0;
  std::vector<double> figures = {};
};
// A server has written its part of a checkpoint, or could not.
struct CheckpointWritten {
  uint32_t job = 0;
  uint64_t step = 0;
  absl::Status status = {};
  std::vector<CheckpointFile> files = {};
  TrainingSettings training = {};  // that hold at that step
  absl::Duration took = {};
};
// The stream ended, for whatever reason. The member may come back on another one.
struct Disconnected {};
// The member has a new stream, and has missed nothing.
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
// The first input of each life: nothing else may be applied before what it gives out is
// stored.
struct Start {};
// Time passes: leases end, waiting is reported. Every heartbeat interval or more often.
struct Tick {};
// What somebody asks for, who is no member: one CallAnswer is among the outputs.

// Other options for a running job.
struct UpdateJob {
  std::string job = {};
  OptionValues optimizer = {};  // new values; others stay
  std::optional<NamedOptions> schedule = std::nullopt;
  std::optional<NamedOptions> mode = std::nullopt;    // mode_change.h
  std::optional<std::string> goals = std::nullopt;    // comm/job/goals.h
  std::optional<std::string> answers = std::nullopt;  // comm/job/answers.h

  // Goals and answers change nothing that servers and workers know.
  bool IsOfTraining() const { return !optimizer.empty() || schedule || mode; }
};
// A checkpoint of a running job.
struct CreateCheckpoint {
  std::string job = {};
};
// The end of a server (coordinator_drain.cc).
struct DrainServer {
  std::string server = {};  // its name, or its number
  bool force = false;       // also where a job would fail, or stand still
};
// A worker is taken out of its job, as a straggler would be (goal_answers.h), at any time:
// for whoever drives the machine (tests/sim).
struct ExcludeWorker {
  std::string job = {};
  uint32_t rank = 0;
  std::string why = {};
  std::optional<uint32_t> incarnation = std::nullopt;  // none: whichever it is now
};
// A worker's process has failed, says its launcher: words of somebody else.
struct WorkerExit {
  std::string job = {};
  std::string run_id = {};
  uint32_t rank = 0;
  std::string how = {};   // "signal 9 (Killed)"
  std::string then = {};  // "started again (1 of 3)"; empty: nothing is known
  std::string said = {};  // the program's last words; empty: none are known
};
// A launcher was told to end, and stops its workers (job_stop.cc): words of somebody else.
struct LauncherStop {
  std::string job = {};
  std::string run_id = {};
  std::vector<uint32_t> ranks = {};  // of its host alone
  std::string why = {};              // "SIGINT (Ctrl-C)"
  std::string host = {};
  bool of_this_job_alone = false;  // whoever says so may speak for no other
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
  uint32_t checkpoint_run = 0;  // of the names of its checkpoints; 0: nothing is saved
  std::optional<CheckpointName> resume_from = std::nullopt;
  // The server takes the place of one that died: with its records of that run.
  std::string restore_run = {};
  uint32_t generation = 0;  // of them
  // It holds the backup of a server, whose place that is.
  std::optional<BackupPair> backup = std::nullopt;
};
// Wants the declaration that a hello announced.
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
  // The worker's own; what is written to a server is derived from it for this server
  // alone (comm/transport/tcp/member_key.h), and what a server reads is that.
  SecretKey key = {};

  bool operator==(const MemberRecord&) const = default;
};
struct CommitEpoch {
  uint32_t job = 0;
  uint64_t epoch = 0;
  std::vector<MemberRecord> members = {};  // in rank order
  std::string reason = {};
  std::optional<TrainingSettings> training = std::nullopt;  // new ones
  uint64_t training_from = 0;                               // the first step with them
  ServerIdentity server = {};                               // to whom this is said
};
// Blocks are to be copied at that version (server/shard/shard.h).
struct CutAt {
  uint32_t job = 0;
  uint64_t step = 0;
  bool last = false;   // no member is left
  bool again = false;  // the last of all; what was written of that step is gone
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
  // The same for all workers.
  std::shared_ptr<const std::vector<std::string>> shard_addresses = {};
  std::shared_ptr<const JobPlacement> placement = {};
  uint32_t members = 0;
  ContributionPlan contributions = {};
  uint64_t barriers = 0;  // of the job that are over
  uint32_t rank = 0;      // whose welcome it is
  SecretKey key = {};     // never written: only what is derived for each of the servers
  std::vector<ServerIdentity> shard_servers = {};  // of each shard
  std::optional<uint64_t> staleness = {};          // of mode ssp, as all servers know it
};
// Where a shard is since a server came back.
struct MovedShard {
  uint32_t shard = 0;
  uint64_t epoch = 0;  // from which on it is there
  std::string address = {};
  ServerIdentity server = {};
};
struct EpochChanged {
  uint64_t epoch = 0;
  uint32_t members = 0;
  bool seeder = false;
  std::string reason = {};
  std::vector<MovedShard> moved = {};      // since the job began
  std::optional<uint64_t> staleness = {};  // of mode ssp, as all servers know it
  // Whose it is. The key is never written: only what is derived for each of the servers.
  MemberIdentity member = {};
  SecretKey key = {};
};
struct BarrierReleased {
  uint64_t barrier = 0;   // by the worker's count
  uint64_t barriers = 0;  // of the job that are over now
};
struct JobFailed {
  std::string reason = {};
};

using CoordinatorBody =
    std::variant<ServerWelcome, ConfigureJob, PrepareEpoch, CommitEpoch, StepDecision,
                 DropJob, Waiting, WorkerWelcome, EpochChanged, BarrierReleased,
                 JobFailed, DescribeJob, CutAt, StepClosed, HoldBackup, BackupAt,
                 BackupGone, TakeOver, Drained, EndServer, JournalGone>;

struct ToMember {
  ConnectionId connection = 0;
  CoordinatorBody body;
};
// Ends the stream with this status: refusals, drops (Aborted), clean ends (OK).
struct CloseMember {
  ConnectionId connection = 0;
  absl::Status status;
};
// What is not of one job, to be stored before any later output is acted upon.
struct PersistState {
  std::string state = {};
};
// A running job, likewise: under `key` goes `value`. Null: it is not needed any more.
struct StoreRecord {
  std::string key = {};
  std::shared_ptr<const std::string> value = {};
};
struct LogReason {
  std::string text = {};
  // A loss that the job gets over, or a refusal, is a warning; a job that ends by it an error.
  enum class Level { kInfo, kWarning, kError } level = Level::kInfo;
};
// By UpdateJob.
struct ChangedSettings {
  uint64_t epoch = 0;                     // from its first step on
  std::vector<std::string> changes = {};  // "lr from 0.1 to 0.01"; empty: none
};
// What is refused leaves everything as it was: InvalidArgument names the option, NotFound
// the job or server, FailedPrecondition says why not now.
struct CallAnswer {
  absl::Status status;
  ChangedSettings changed = {};       // of UpdateJob
  uint64_t finished_checkpoints = 0;  // of CreateCheckpoint: there will be one more
  uint32_t server = 0;                // of DrainServer
  std::string server_name = {};       // likewise
};
// An order, whose answer is an input.
struct Prepare {
  Preparation order;
};
using CoordinatorOutput =
    std::variant<ToMember, CloseMember, PersistState, LogReason, CallAnswer, Prepare,
                 CheckpointOrder, StoreRecord, CoordinatorEvent>;
using CoordinatorOutputs = std::vector<CoordinatorOutput>;

struct CoordinatorOptions {
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  uint32_t expected_servers = 1;   // jobs begin when so many are attached
  bool keeps_checkpoints = false;  // CheckpointOrders are carried out
  // How long a job whose servers keep journals waits for one that died.
  absl::Duration patience = DefaultPatience(kDefaultFailureTimeout);
  // The server in this process, which cannot end without it; empty: there is none.
  std::string own_server = {};
};

// What the last life of the coordinator had stored.
struct StoredState {
  std::string state = {};                           // the last PersistState
  std::map<std::string, std::string> records = {};  // of StoreRecord, by their keys
};

class Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);
  ~Coordinator();

  // Goes on from there: epochs and incarnations only grow across restarts, and jobs that
  // ran wait for their members to come back (job_restore.cc). DataLoss when it cannot be
  // read.
  absl::Status Restore(const StoredState& stored, const DeclarationReader& reader);
  // The number of this life, from 1: members that know of a later one do not listen.
  uint64_t term() const;

  CoordinatorOutputs Apply(const CoordinatorInput& input, absl::Duration now);

  CoordinatorView View(absl::Duration now) const;

  // NotFound when none of that name runs.
  absl::StatusOr<TraceTargets> TraceTargetsOf(const std::string& job) const;

  // When the next Tick is due earlier than by its period; infinite when it is not.
  absl::Duration wake_at() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace syncline
