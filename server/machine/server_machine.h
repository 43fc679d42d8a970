// The decisions of a server, as a pure state machine: between the coordinator's messages,
// the engines, the journal and the backups.
//
// For each job it remembers what the coordinator ordered, and which engines have carried
// it out. It decides what the server tells the coordinator, and what engines, builder and
// journal must do. It holds no shards and no records, and uses no socket, file, clock or
// thread. A server and the server of the simulation (tests/sim) run this same machine.
//
// There are two kinds of inputs. Apply takes what the coordinator says and what becomes
// of the orders that follow from it; it returns outputs. The shell queues each Say at
// once, together with what Report returns, and carries out the other outputs in their
// order. Report takes what engines, journal and checkpoint writer report; it returns
// at most one message to the coordinator, so that their threads never carry out an order.
// Orders about a job of which the engines know nothing (yet, or any more) are ignored by
// them.
//
//   ServerMachine machine({.engines = 2, .name = "10.0.0.7:4711"});
//   for (ServerOutput& output : machine.Apply(PrepareEpoch{5, 2})) ...  // -> ToShards
//   machine.Report(EngineOutput{0, 5, prepared});  // -> nothing: engine 1 is missing
//   machine.Report(EngineOutput{1, 5, prepared});  // -> EpochPrepared{5, 2, step}
//
// Thread safety: none; the shell calls it under a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/backup.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/held_job.h"
#include "server/shard/shard.h"

namespace syncline {

struct ServerMachineOptions {
  uint32_t engines = 1;
  std::string name = {};               // of the server, for error messages
  bool has_checkpoint_store = false;   // it can write its part of checkpoints
  bool has_journal_directory = false;  // it can keep journals
  bool is_stand_in = false;            // it ends with its job
};

// ---- What the shell must do ----

// Sends the message to the coordinator.
struct Say {
  MemberBody body;
};
// The coordinator has accepted the server.
struct Attached {
  ServerIdentity identity = {};
};
// Creates the shards of the job that was ordered; ShardsBuilt answers. If `holds_backup`,
// they take another server's records, and no engine gets them before FinishBackup.
struct BuildShards {
  uint32_t job = 0;
  uint64_t order = 0;  // its number, which ShardsBuilt returns
  bool holds_backup = false;
};
// Ends taking records, plays those that are there, and gives the shards to the engines;
// ShardsBuilt answers.
struct FinishBackup {
  uint32_t job = 0;
  uint64_t order = 0;  // as in BuildShards
};
// Ends building the job's shards, and frees those that are there. Its journal and its
// unfinished checkpoints are closed.
struct DropShards {
  uint32_t job = 0;
  std::string reason = {};
};
// The same for all jobs.
struct DropAllShards {};
// Gives the input to the job's shards on all engines.
struct ToShards {
  uint32_t job = 0;
  ShardInput input;
};
// Lets these members connect, and nobody else. They also name the run of a journal that
// has no name yet.
struct AdmitMembers {
  uint32_t job = 0;
  uint64_t epoch = 0;
  std::vector<MemberRecord> members = {};
  std::string reason = {};  // why the epoch begins
};
// Sends the job's records to that backup.
struct SendRecords {
  BackupAt at = {};
};
// Sends no more records to that backup, and does not wait for it.
struct StopRecords {
  uint32_t job = 0;
  std::string reason = {};
  uint64_t session_key = 0;  // of BackupAt; 0: all that there are
};
// Waits no longer for the job's journal, which has failed.
struct LoseJournal {
  uint32_t job = 0;
};
// Lets the job's journal start over as that generation.
struct AllowJournal {
  uint32_t job = 0;
  uint32_t generation = 0;
};
// Begins the journal of a stand-in that has taken over: it starts with the complete state
// of the shards.
struct BeginJournal {
  uint32_t job = 0;
  std::string run = {};
  uint32_t generation = 0;
};
// The files of the job's last checkpoint could not be written, and are written again.
struct BeginLastCut {
  uint32_t job = 0;
  uint64_t step = 0;
};
// Starts a node that stands in for another server.
struct StartStandIn {
  HoldBackup hold = {};
};
// Stand-ins only: ends this node.
struct EndNode {
  std::string why = {};
};
// An operator wants the process to end.
struct EndProcess {};
// The message is not for servers, and was ignored.
struct Misdirected {
  std::string message = {};  // its kind
};

using ServerOutput =
    std::variant<Say, Attached, BuildShards, FinishBackup, DropShards, DropAllShards,
                 ToShards, AdmitMembers, SendRecords, StopRecords, LoseJournal,
                 AllowJournal, BeginJournal, BeginLastCut, StartStandIn, EndNode,
                 EndProcess, Misdirected>;
using ServerOutputs = std::vector<ServerOutput>;

// ---- What the shell says ----

// A ConfigureJob, whose large rest is read where the shards are built.
struct JobOrder {
  uint32_t job = 0;
  uint32_t first_shard = 0;
  bool holds_backup = false;
};
// Answers BuildShards and FinishBackup. The machine ignores the answer if the job was
// dropped, or ordered again, since then.
struct ShardsBuilt {
  uint32_t job = 0;
  uint64_t order = 0;  // of BuildShards or FinishBackup
  absl::Status status = {};
  // For shards that were restored from records: the step that all trained blocks have
  // reached.
  uint64_t step = 0;
};
// The link to the coordinator has ended for good: all jobs are over for this server.
struct LinkLost {};

// An output of a shard, for the coordinator.
struct EngineOutput {
  uint32_t engine = 0;
  uint32_t job = 0;
  const ShardOutput& output;
  std::string run = {};  // of the job's journal; used for ShardCommitted
};
// A backup to which SendRecords `with_state` was ordered has an engine's complete state.
struct BackupFilled {
  uint32_t engine = 0;
  uint32_t job = 0;
  uint64_t session_key = 0;  // of BackupAt
};
// A server: its backup cannot be reached. A stand-in: its backup cannot continue.
struct BackupFailed {
  uint32_t job = 0;
  uint64_t session_key = 0;  // of BackupAt; 0: it is the stand-in that reports
  std::string why = {};
};
// The journal of a job that also has a backup has failed. Each engine reports it.
struct JournalFailed {
  uint32_t job = 0;
  std::string why = {};
  uint64_t endings = 0;  // how often it has ended so far
};
// The journal has started over as that generation, and is complete.
struct JournalCompleted {
  uint32_t job = 0;
  uint32_t generation = 0;
};
// The process is to end, and this server holds so many backups for others.
struct DrainAsked {
  size_t stand_ins = 0;
};

class ServerMachine {
 public:
  explicit ServerMachine(ServerMachineOptions options);

  ServerOutputs Apply(const CoordinatorBody& said);
  ServerOutputs Apply(const JobOrder& order);
  ServerOutputs Apply(const ShardsBuilt& built);
  ServerOutputs Apply(const LinkLost& lost);

  // Outputs of shards that are of no use to the coordinator give no message.
  std::optional<MemberBody> Report(const EngineOutput& report);
  std::optional<MemberBody> Report(const BackupFilled& filled);
  std::optional<MemberBody> Report(const BackupFailed& failed);
  std::optional<MemberBody> Report(const JournalFailed& failed);
  std::optional<MemberBody> Report(const JournalCompleted& completed);
  std::optional<MemberBody> Report(CheckpointWritten written);
  std::optional<MemberBody> Report(const DrainAsked& asked);

  // The job has backups, and its shards begin without one: the server does not end at once
  // when it is asked to (DrainAsked).
  void ExpectBackup(uint32_t job);

  // For a hello: what the server holds of each job, without the runs of journals.
  std::vector<HeldJob> Held() const;
  // What the server repeats after a hello to a restarted coordinator, which may not have
  // heard it.
  std::vector<MemberBody> Unanswered() const;

  bool Knows(uint32_t job) const { return jobs_.contains(job); }
  // The job has a backup with the complete state of its shards.
  bool HasBackup(uint32_t job) const;
  // Nothing once the link is lost.
  const std::optional<ServerIdentity>& identity() const { return identity_; }
  // After DrainAsked: whether the process may end.
  bool has_drained() const { return has_drained_ || !identity_; }

 private:
  using Engines = std::set<uint32_t>;

  // A backup to which records are sent.
  struct Backup {
    Engines filling = {};      // engines that have not sent it their complete state
    bool reports_loss = true;  // its loss was not reported yet
  };
  struct Job {
    uint32_t first_shard = 0;  // number of its first engine's shard
    uint64_t order = 0;        // the last BuildShards or FinishBackup
    bool has_shards = false;   // they have been built
    JobMemory memory = {};
    // The last orders, and the engines that have not carried them out yet.
    uint64_t prepared_epoch = 0;
    Engines preparing = {};
    uint64_t next_step = 0;  // the highest answer to PrepareEpoch
    uint64_t committed_epoch = 0;
    Engines committing = {};
    // Backups.
    bool has_had_backup = false;
    std::string why_gone = {};  // the reason of BackupGone
    bool lacks_backup = false;  // BackupGone, and no other one is complete yet
    // By session key. Two, while one is to replace the other.
    std::map<uint64_t, Backup> backups = {};
    bool reports_failure = true;  // a stand-in: that it cannot continue
    // The journal.
    std::optional<BeginJournal> later_journal = {};  // begins with the next commit
    std::optional<std::string> journal_lost = {};    // said, and not answered
    uint64_t journal_endings = 0;                    // of which the coordinator was told
    uint32_t whole_generation = 0;                   // said; 0: none
  };

  void On(const ServerWelcome& welcome, ServerOutputs& outputs);
  void On(const ConfigureJob& configure, ServerOutputs& outputs);
  void On(const PrepareEpoch& prepare, ServerOutputs& outputs);
  void On(const CommitEpoch& commit, ServerOutputs& outputs);
  void On(const StepDecision& decision, ServerOutputs& outputs);
  void On(const StepClosed& closed, ServerOutputs& outputs);
  void On(const CutAt& cut, ServerOutputs& outputs);
  void On(const DropJob& drop, ServerOutputs& outputs);
  void On(const HoldBackup& hold, ServerOutputs& outputs);
  void On(const BackupAt& at, ServerOutputs& outputs);
  void On(const BackupGone& gone, ServerOutputs& outputs);
  void On(const TakeOver& take, ServerOutputs& outputs);
  void On(const JournalGone& gone, ServerOutputs& outputs);
  void On(const Drained& drained, ServerOutputs& outputs);
  void On(const EndServer& end, ServerOutputs& outputs);
  // Messages for workers. A message of a new kind does not compile before it has its On.
  void On(const Waiting& waiting, ServerOutputs& outputs);
  void On(const WorkerWelcome& welcome, ServerOutputs& outputs);
  void On(const EpochChanged& changed, ServerOutputs& outputs);
  void On(const BarrierReleased& released, ServerOutputs& outputs);
  void On(const JobFailed& failed, ServerOutputs& outputs);
  void On(const DescribeJob& describe, ServerOutputs& outputs);
  void On(const SlowestWorker& slowest, ServerOutputs& outputs);

  void BeginLaterJournal(uint32_t id, Job& job, ServerOutputs& outputs);
  Job* Find(uint32_t job);
  Engines AllEngines() const;
  // Removes the engine from `waiting`, and returns whether it was the last.
  static bool WasLast(Engines& waiting, uint32_t engine);

  const ServerMachineOptions options_;
  std::optional<ServerIdentity> identity_;  // once attached
  bool drains_ = false;
  bool has_drained_ = false;
  std::map<uint32_t, Job> jobs_;
  uint64_t orders_ = 0;  // number of the last one
};

}  // namespace syncline
