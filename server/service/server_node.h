// A server: its engines and its stream to the coordinator. What it decides is the
// ServerMachine's (server/machine); the node carries out what the machine orders, and
// tells it what engines, builder, journal and checkpoint writer report.
//
// If the coordinator cannot be reached, it logs that and tries again forever. A stream
// that breaks is replaced (comm/rpc/control_link.h). While the coordinator is away the
// jobs continue, and a restarted coordinator is told what the server holds (held_job.h).
// After `patience` the link and all jobs end; a server that attaches after that is a new
// one for the coordinator. Its hello lists the runs that it has journals of, and the
// coordinator may order it to continue one of them (ADR 25). A refusal that no repetition
// can change (another protocol version, a wrong certificate) is final and goes to
// `on_given_up`.
//
// A job that the server cannot create fails alone: the coordinator is told
// (ConfigureFailed), and the stream and all other jobs continue.
//
// Threads: one for each engine, the builder (which creates and ends jobs), the stream's,
// and the control thread, which talks to the coordinator. So neither control traffic nor
// a large new job delays an engine. Orders of the machine are carried out one input after
// the other (turn_), by the threads of stream, builder and control. Reports of engines and
// journal give no orders, and wait only for the machine (mutex_).
//
// Thread safety: any thread may call the public methods. Events are called on the node's
// own threads and must not block.
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
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/patience.h"
#include "comm/base/repeats.h"
#include "comm/base/steady_condition.h"
#include "comm/base/timeouts.h"
#include "comm/codec/codec.h"
#include "comm/rpc/control_link.h"
#include "comm/rpc/tls.h"
#include "comm/rpc/trace_sender.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/mode_change.h"
#include "server/journal/journal.h"
#include "server/machine/server_machine.h"
#include "server/service/backup_shard.h"
#include "server/service/checkpoint_saver.h"
#include "server/service/engine.h"
#include "server/service/shard_builder.h"

namespace syncline {

struct ServerNodeOptions {
  std::string coordinator = "127.0.0.1:7070";
  std::string name;  // for people, stable across restarts: "host:pid" or the pod's name
  uint32_t engines = 1;
  uint64_t memory_bytes = 0;  // memory for all of its jobs together; 0: unknown
  DataPlanePlan plan = {};
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  TlsOptions tls = {};
  Logger log = {};
  Logger audit = {};           // logs the peers that its data ports refused
  Metrics* metrics = nullptr;  // must outlive the node; null: no metrics
  // The store that the coordinator uses for checkpoints; null: none. Must outlive the
  // node.
  BlobStore* checkpoints = nullptr;
  // Set: the node is a stand-in for that server. It ends with its job or its link.
  std::optional<StandInFor> stand_in = std::nullopt;
  std::string journal_directory = {};  // for jobs with durability=disk; empty: none
  double journal_snapshot_factor = kSnapshotFactor;
  // How long it keeps its jobs while the coordinator is away.
  absl::Duration patience = DefaultPatience(kDefaultFailureTimeout);
};

struct ServerNodeEvents {
  // The coordinator has accepted the server, under this number. Called after each attach.
  std::function<void(uint32_t server)> on_attached = [](uint32_t) {};
  // The server cannot continue: the coordinator refuses it, or its disk has lost what was
  // written. The process must end. Called on any thread.
  std::function<void(const absl::Status&)> on_given_up = [](const absl::Status&) {};
  // An operator wants the process to end, as after SIGTERM: call Drain, then Stop.
  std::function<void()> on_told_to_end = [] {};
};

class ServerNode {
 public:
  // Does not wait for the coordinator. An error: the transport has no usable device.
  static absl::StatusOr<std::unique_ptr<ServerNode>> Start(
      const ServerNodeOptions& options, ServerNodeEvents events);
  ~ServerNode();  // stops

  // Asks the coordinator for permission to end. has_drained() is true once no job's
  // weights would be lost: at once, unless a job has backups.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_drained() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_attached() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Stand-ins only: it has ended.
  bool has_ended() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What the node keeps of a job beside the machine.
  struct Share {
    std::shared_ptr<const v1::ConfigureJob> message = {};  // until its shards are built
    uint64_t order = 0;          // the last BuildShards or FinishBackup
    uint64_t memory_bytes = 0;   // planned for the staleness in force
    MemoryUse use = {};          // planned for the declared staleness
    uint64_t staleness = 0;      // the declared one
    uint64_t restored_step = 0;  // of shards that were restored from records
    // Stand-ins only: the journal that begins after the take-over, without its run.
    std::optional<JournaledJob> later_journal = {};
  };

  ServerNode(const ServerNodeOptions& options, ServerNodeEvents events);
  absl::Status StartEngines();

  // The control thread.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Attach() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Converse(ControlLink& link) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Rest() ABSL_LOCKS_EXCLUDED(mutex_);
  ServerHello MakeHello() const ABSL_LOCKS_EXCLUDED(mutex_);
  v1::MemberMessage HelloMessage() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The hello for a restarted coordinator: lists what the server holds. Messages that no
  // decision has answered follow.
  v1::MemberMessage HelloAgain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Shows the jobs of an engine, the server's number `shard`, in the metrics.
  void ShowShards(const Engine::LatestReport& report, uint32_t shard);
  Heartbeat MakeHeartbeat();
  void SendTrace(ControlLink& link, const Heartbeat& beat) ABSL_LOCKS_EXCLUDED(mutex_);

  // The stream's thread.
  void OnMessage(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void Configure(const v1::ConfigureJob& configure) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives the machine an input, and carries out its outputs in their order.
  template <typename Input>
  void Apply(const Input& input) ABSL_LOCKS_EXCLUDED(turn_, mutex_);
  // Gives the machine a report, and queues what it says to the coordinator. Any thread.
  template <typename What>
  void Report(What report) ABSL_LOCKS_EXCLUDED(mutex_);
  void Queue(std::optional<MemberBody> said) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Carry out one output each. REQUIRES: turn_ is held.
  void Perform(const Say& /*say*/) {}  // Apply queues it
  void Perform(const Attached& attached);
  void Perform(const BuildShards& build) ABSL_LOCKS_EXCLUDED(mutex_);
  void Perform(const FinishBackup& finish);
  void Perform(const DropShards& drop) ABSL_LOCKS_EXCLUDED(mutex_);
  void Perform(const DropAllShards& drop) ABSL_LOCKS_EXCLUDED(mutex_);
  void Perform(const ToShards& order) ABSL_LOCKS_EXCLUDED(mutex_);
  void Perform(const AdmitMembers& admit);
  void Perform(const SendRecords& records);
  void Perform(const StopRecords& records);
  void Perform(const LoseJournal& journal);
  void Perform(const AllowJournal& journal);
  void Perform(const BeginJournal& journal) ABSL_LOCKS_EXCLUDED(mutex_);
  void Perform(const BeginLastCut& cut);
  void Perform(const StartStandIn& stand_in) ABSL_LOCKS_EXCLUDED(mutex_);
  void Perform(const EndNode& end) ABSL_LOCKS_EXCLUDED(mutex_);
  void Perform(const EndProcess& /*end*/) { events_.on_told_to_end(); }
  void Perform(const Misdirected& message);

  // Creates the shards of a stand-in, which then take records.
  void ConfigureBackup(uint64_t order,
                       const std::shared_ptr<const v1::ConfigureJob>& message);
  void KeepBackup(const ConfigureJob& configure, std::vector<EngineJob> parts);
  absl::StatusOr<std::vector<EngineJob>> PlayBackup(uint32_t job)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Hold(const HoldBackup& hold) ABSL_LOCKS_EXCLUDED(mutex_);
  void TendStandIns() ABSL_LOCKS_EXCLUDED(mutex_);
  void End(std::unique_ptr<ServerNode> node);
  // Add the progress of backups and journals to a heartbeat, and to the metrics.
  void AddBackups(const std::map<uint32_t, RecordSender::Progress>& progress,
                  std::map<uint32_t, JobProgress>& jobs) const;
  void AddJournals(std::map<uint32_t, JobProgress>& jobs) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnd(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(const v1::TraceOrder& order) ABSL_LOCKS_EXCLUDED(mutex_);

  // The builder's thread.
  absl::StatusOr<std::vector<EngineJobOptions>> SplitJob(
      const ConfigureJob& configure) const;
  absl::Status TakeMemory(const ConfigureJob& configure,
                          const std::vector<EngineJobOptions>& parts)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds the place of the job's checkpoints, and the one that its shards begin with.
  absl::Status AddCheckpoints(const ConfigureJob& configure,
                              std::vector<EngineJobOptions>& parts);
  // Adds a journal. FailedPrecondition: there is no directory for it.
  absl::Status AddJournal(const ConfigureJob& configure, const std::string& specification,
                          std::vector<EngineJobOptions>& parts);
  // Continues a run: its shards are restored from its records, and its journal is
  // appended to.
  absl::Status RestoreJournal(const ConfigureJob& configure, JournaledJob job,
                              std::vector<EngineJobOptions>& parts);
  // Starts a new journal with the complete state of the shards, once the disk can be
  // written again.
  void RecordState(uint32_t job);
  // Report that the journal has ended, and that it has started over and is complete.
  void OnJournalEnded(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnJournalWhole(uint32_t job, uint32_t generation) ABSL_LOCKS_EXCLUDED(mutex_);
  // Describes how the shards are made, for a journal; without run and records.
  static absl::StatusOr<JournaledJob> DescribeJournal(
      const ConfigureJob& configure, const std::string& specification,
      std::vector<EngineJobOptions>& parts);
  absl::Status AddLaterJournal(const ConfigureJob& configure,
                               const std::string& specification,
                               std::vector<EngineJobOptions>& parts)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the journal its run's name, which the commit carries to all servers.
  void NameJournal(const AdmitMembers& epoch);
  void OnWritten(CheckpointWritten written) ABSL_LOCKS_EXCLUDED(mutex_);
  void CopyNext(uint32_t job, uint32_t engine, uint64_t step);
  void TakeMemoryFor(uint32_t job, const SyncMode& mode) ABSL_LOCKS_EXCLUDED(mutex_);
  void ShowMemory() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnBuilt(uint32_t job, uint64_t order, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The engines' threads.
  void OnOutput(uint32_t engine, uint32_t job, const ShardOutput& output)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Saves an output that is part of a checkpoint. Returns false for other outputs.
  bool SaveOutput(uint32_t engine, uint32_t job, const ShardOutput& output);

  const ServerNodeOptions options_;
  const ServerNodeEvents events_;
  const CodecRegistry codecs_ = CodecRegistry::Builtin();

  const SteadyClock clock_;
  TraceRecorder recorder_{clock_};
  TraceSender trace_{recorder_};

  Repeats unreadable_;  // messages, by reason

  // Held while the outputs of an input are carried out.
  absl::Mutex turn_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  ServerMachine machine_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);  // the link under way
  std::vector<MemberBody> outbox_ ABSL_GUARDED_BY(mutex_);
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  size_t stand_in_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<HoldBackup> asked_ ABSL_GUARDED_BY(mutex_);  // stand-ins to start
  std::optional<v1::MemberMessage> trace_answer_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, Share> shares_ ABSL_GUARDED_BY(mutex_);  // by job

  // Unchanged from Start to Stop.
  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<ShardBuilder> builder_;
  std::unique_ptr<CheckpointSaver> saver_;  // null without a store
  std::unique_ptr<Journal> journal_;        // null without a directory
  // Used by the control thread. Stand-ins that end do so on threads of their own.
  std::vector<std::unique_ptr<ServerNode>> stand_ins_;
  std::vector<std::future<void>> endings_;
  // Stand-ins only, one for each engine until the take-over; used by the builder's thread.
  std::vector<std::unique_ptr<BackupShard>> backup_;
  std::thread control_;
};

template <typename Input>
void ServerNode::Apply(const Input& input) {
  absl::MutexLock turn(&turn_);
  ServerOutputs outputs;
  {
    absl::MutexLock lock(&mutex_);
    outputs = machine_.Apply(input);
    for (ServerOutput& output : outputs) {
      if (auto* say = std::get_if<Say>(&output)) Queue(std::move(say->body));
    }
  }
  for (const ServerOutput& output : outputs) {
    std::visit([this](const auto& order) { this->Perform(order); }, output);
  }
}

template <typename What>
void ServerNode::Report(What report) {
  absl::MutexLock lock(&mutex_);
  Queue(machine_.Report(std::move(report)));
}

}  // namespace syncline
