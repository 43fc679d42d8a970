// A server: its engines and its stream to the coordinator. Applies what the coordinator
// says to the engines that it concerns and reports back what all of them have done.
//
// While the coordinator cannot be reached it tries again forever and says so in the log.
// A stream that breaks is replaced (comm/rpc/control_link.h). While the coordinator is away
// the jobs go on; to one that was started anew the server says what it holds (held_job.h).
// A link that ends, after `patience` at the latest, takes the jobs with it: to the
// coordinator a server that comes back then is a new one. With its hello it says of which
// runs it has a journal, and may be told to go on with one (ADR 25). A refusal that trying
// again cannot change (another protocol version, a wrong certificate) is final and goes to
// `on_given_up`.
//
// A job that it cannot make is the job's error and nobody else's: the coordinator is told
// (ConfigureFailed), the stream and all other jobs go on.
//
// Threads: one for each engine, one on which jobs are made and ended, one of the stream,
// and one that speaks to the coordinator, so that neither control traffic nor the size of
// a new job ever holds up an engine. Public methods may be
// called from any thread; events are called on the node's own threads and must not block.
//
//   SYNCLINE_ASSIGN_OR_RETURN(
//       auto node, ServerNode::Start({.coordinator = "10.0.0.1:7070"}, events));
//   ...
//   node->Stop();
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/patience.h"
#include "comm/base/steady_condition.h"
#include "comm/base/timeouts.h"
#include "comm/codec/codec.h"
#include "comm/rpc/control_link.h"
#include "comm/rpc/tls.h"
#include "comm/rpc/trace_sender.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/held_job.h"
#include "server/coordinator/mode_change.h"
#include "server/journal/journal.h"
#include "server/service/backup_shard.h"
#include "server/service/checkpoint_saver.h"
#include "server/service/engine.h"
#include "server/service/shard_builder.h"

namespace syncline {

struct ServerNodeOptions {
  std::string coordinator = "127.0.0.1:7070";
  std::string name;  // stable across restarts, for people: "host:pid" or the pod's name
  uint32_t engines = 1;
  uint64_t memory_bytes = 0;  // what its jobs may take together; 0: not known
  DataPlanePlan plan = {};
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  TlsOptions tls = {};
  Logger log = {};
  Logger audit = {};           // whom its data ports turned away
  Metrics* metrics = nullptr;  // outlives the node; null counts nothing
  // Where the coordinator keeps checkpoints, too; null: none. Outlives the node.
  BlobStore* checkpoints = nullptr;
  // It holds the backup of that server; ends with its job, or its link.
  std::optional<StandInFor> stand_in = std::nullopt;
  std::string journal_directory = {};  // of jobs with durability=disk; empty: none
  double journal_snapshot_factor = kSnapshotFactor;
  // How long it keeps its jobs for a coordinator that is away.
  absl::Duration patience = DefaultPatience(kDefaultFailureTimeout);
};

struct ServerNodeEvents {
  // Every time the coordinator took us in: the number that it gave us.
  std::function<void(uint32_t server)> on_attached = [](uint32_t) {};
  // It cannot go on: the coordinator does not want it, or its disk has lost what it wrote.
  // Its process is to end. From any thread.
  std::function<void(const absl::Status&)> on_given_up = [](const absl::Status&) {};
  // An operator wants its process to end, as SIGTERM would make it: Drain, then Stop.
  std::function<void()> on_told_to_end = [] {};
};

class ServerNode {
 public:
  // Fails when the transport has no usable device. Does not wait for the coordinator.
  static absl::StatusOr<std::unique_ptr<ServerNode>> Start(
      const ServerNodeOptions& options, ServerNodeEvents events);
  ~ServerNode();  // stops

  // Asks the coordinator whether it may end without a job's weights ending with it; has_drained
  // says when. At once, unless a job has backups.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_drained() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_attached() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a stand-in: it does nothing any more.
  bool has_ended() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Which engines have still to answer the coordinator's last word about a job.
  struct Job {
    uint64_t prepared_epoch = 0;
    std::set<uint32_t> preparing;
    uint64_t next_step = 0;
    uint64_t committed_epoch = 0;
    std::set<uint32_t> committing;
    uint64_t memory_bytes = 0;   // as planned
    MemoryUse use = {};          // the same for the staleness of its declaration
    uint64_t staleness = 0;      // of its declaration
    uint64_t restored_step = 0;  // of one that goes on from its journal
    uint32_t first_shard = 0;    // of its engines
    JobMemory memory = {};
    bool has_had_backup = false;
    bool lacks_backup = false;
    bool says_loss = true;
    // Of a stand-in: the journal that begins with the first commit after it has taken over.
    std::optional<JournaledJob> later_journal = {};
    // What the coordinator was told last of the journal, if it has a backup, too.
    std::optional<std::string> journal_lost = {};
    uint64_t journal_endings = 0;  // that it was told of
    uint32_t whole_generation = 0;
    // A backup that is being made anew: by which key, and engines that have still to give it
    // all that they have.
    uint64_t backup_key = 0;
    std::set<uint32_t> backing_up;
  };

  ServerNode(const ServerNodeOptions& options, ServerNodeEvents events);
  absl::Status StartEngines();

  // The control thread.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Attach() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Converse(ControlLink& link) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetJobs() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Rest() ABSL_LOCKS_EXCLUDED(mutex_);
  ServerHello MakeHello() const ABSL_LOCKS_EXCLUDED(mutex_);
  v1::MemberMessage HelloMessage() const ABSL_LOCKS_EXCLUDED(mutex_);
  // To a coordinator that was started anew: with what it holds. What no decision has
  // answered follows.
  v1::MemberMessage HelloAgain() ABSL_LOCKS_EXCLUDED(mutex_);
  Heartbeat MakeHeartbeat();
  void SendTrace(ControlLink& link, const Heartbeat& beat) ABSL_LOCKS_EXCLUDED(mutex_);

  // The stream's thread.
  void OnMessage(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const ServerWelcome& welcome) ABSL_LOCKS_EXCLUDED(mutex_);
  void Configure(const v1::ConfigureJob& configure) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const PrepareEpoch& prepare) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const CommitEpoch& commit) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const StepDecision& decision) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const StepClosed& closed) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const HoldBackup& hold) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const BackupAt& at) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const BackupGone& gone) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const TakeOver& take) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const JournalGone& gone) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const Drained& drained) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const EndServer& /*end*/) { events_.on_told_to_end(); }
  void OnBackupLost(uint32_t job, const std::string& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnBackedUp(uint32_t engine, uint32_t job, uint64_t session_key)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Its shards are made, and take records.
  void ConfigureBackup(const std::shared_ptr<const v1::ConfigureJob>& message);
  void KeepBackup(const ConfigureJob& configure, std::vector<EngineJob> parts);
  absl::StatusOr<std::vector<EngineJob>> FinishBackup(uint32_t job)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void StartStandIn(const HoldBackup& hold) ABSL_LOCKS_EXCLUDED(mutex_);
  void TendStandIns() ABSL_LOCKS_EXCLUDED(mutex_);
  void End(std::unique_ptr<ServerNode> node);
  // What they have, for the coordinator and the metrics.
  void AddBackups(const std::map<uint32_t, RecordSender::Progress>& progress,
                  std::map<uint32_t, JobProgress>& jobs) const;
  void AddJournals(std::map<uint32_t, JobProgress>& jobs) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const DropJob& drop) ABSL_LOCKS_EXCLUDED(mutex_);
  void On(const CutAt& cut) ABSL_LOCKS_EXCLUDED(mutex_);
  // What is meant for workers, or news of a later version.
  template <typename Other>
  void On(const Other&) {}
  void OnEnd(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(const v1::TraceOrder& order) ABSL_LOCKS_EXCLUDED(mutex_);
  void ApplyToAll(uint32_t job, const ShardInput& input);

  // The builder's thread.
  absl::StatusOr<std::vector<EngineJobOptions>> SplitJob(
      const ConfigureJob& configure) const;
  absl::Status TakeMemory(const ConfigureJob& configure,
                          const std::vector<EngineJobOptions>& parts)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Where the job is saved, and what its shards begin with.
  absl::Status AddCheckpoints(const ConfigureJob& configure,
                              std::vector<EngineJobOptions>& parts);
  // The job's records are kept. FailedPrecondition when there is no place for them.
  absl::Status AddJournal(const ConfigureJob& configure, const std::string& specification,
                          std::vector<EngineJobOptions>& parts);
  // The run goes on: its shards begin with what its records say, and its journal where it
  // ended.
  absl::Status RestoreJournal(const ConfigureJob& configure, JournaledJob job,
                              std::vector<EngineJobOptions>& parts);
  // The disk takes files again: what the job's shards are is written anew.
  void RecordAnew(uint32_t job);
  // Why its journal has ended, for the coordinator.
  void OnJournalEnded(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnJournalWhole(uint32_t job, uint32_t generation) ABSL_LOCKS_EXCLUDED(mutex_);
  void SayJournals() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteBackupToCome(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of what was a stand-in.
  void BeginLaterJournal(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Without run and records: what its shards are made of.
  static absl::StatusOr<JournaledJob> DescribeJournal(
      const ConfigureJob& configure, const std::string& specification,
      std::vector<EngineJobOptions>& parts);
  absl::Status AddLaterJournal(const ConfigureJob& configure,
                               const std::string& specification,
                               std::vector<EngineJobOptions>& parts)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A commit names the run: all servers hear of the same.
  void NameJournal(const CommitEpoch& commit);
  void OnWritten(CheckpointWritten written) ABSL_LOCKS_EXCLUDED(mutex_);
  void CopyNext(uint32_t job, uint32_t engine, uint64_t step);
  void TakeMemoryFor(Job& job, const SyncMode& mode)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowMemory() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnBuilt(uint32_t job, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // The engines' threads.
  void OnOutput(uint32_t engine, uint32_t job, const ShardOutput& output)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void ReportHeld(uint32_t engine, uint32_t job, const ShardHeld& held)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether it is part of a checkpoint.
  bool SaveOutput(uint32_t engine, uint32_t job, const ShardOutput& output);
  std::set<uint32_t> AllEngines() const;
  // Takes the engine out of those that are waited for.
  static bool WasLast(std::set<uint32_t>& waiting, uint32_t engine);

  const ServerNodeOptions options_;
  const ServerNodeEvents events_;
  const CodecRegistry codecs_ = CodecRegistry::Builtin();

  const SteadyClock clock_;
  TraceRecorder recorder_{clock_};
  TraceSender trace_{recorder_};

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ServerIdentity> identity_ ABSL_GUARDED_BY(mutex_);  // once attached
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);       // the link under way
  std::vector<MemberBody> outbox_ ABSL_GUARDED_BY(mutex_);
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool drains_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_drained_ ABSL_GUARDED_BY(mutex_) = false;
  size_t stand_in_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<HoldBackup> asked_ ABSL_GUARDED_BY(mutex_);  // for stand-ins
  std::optional<v1::MemberMessage> trace_answer_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, Job> jobs_ ABSL_GUARDED_BY(mutex_);

  std::vector<std::unique_ptr<Engine>> engines_;  // unchanged from Start to Stop
  std::unique_ptr<ShardBuilder> builder_;         // likewise
  std::unique_ptr<CheckpointSaver> saver_;        // likewise; null without a store
  std::unique_ptr<Journal> journal_;              // likewise; null without a directory
  // Of the control thread, and those that end: each on a thread of its own.
  std::vector<std::unique_ptr<ServerNode>> stand_ins_;
  std::vector<std::future<void>> endings_;
  // Of a stand-in, by engine: until it takes over or ends; of the builder's thread.
  std::vector<std::unique_ptr<BackupShard>> backup_;
  std::thread control_;
};

}  // namespace syncline
