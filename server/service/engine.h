// An engine: one thread of a server, with its own transport and one shard for each job.
// It moves messages between workers and shards, and reports what the coordinator must
// know to `EngineEvents`.
//
// Between hosts a worker connects with the key given to Admit (comm/transport/tcp). Its
// messages must carry the identity that it proved, and answers use the same connection.
// Within a host its kHello carries the address for answers, and must have a member's
// session key. Sizes are checked against the shard before a payload gets any memory. Each
// accepted worker has a WorkerLink (server/links), which sends all answers. Answers to
// workers without one are dropped: workers repeat what was under way after they
// reconnect.
//
// Build allocates a job's memory on the caller's thread, and the result of Release frees
// it on the caller's thread. The engine's thread only takes over and hands back the
// shard, so a large job never delays the others.
//
// Thread safety: any thread except the engine's own may call the public methods. They
// take effect on the engine's thread, in the order of the calls. Events are called on
// that thread and must not block.
//
//   auto engine = *Engine::Start({.plan = {.mode = DataPlaneMode::kAuto}}, events);
//   hello.shard_addresses.push_back(engine->address());
//   engine->Adopt(job, *engine->Build({shard_options, blocks}));
//   engine->Apply(job, ShardPrepare{2});  // -> events.on_output(job, ShardPrepared{...})
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/repeats.h"
#include "comm/base/secret_key.h"
#include "comm/base/step_phases.h"
#include "comm/base/timeouts.h"
#include "comm/transport/loop.h"
#include "comm/transport/network/network.h"
#include "comm/transport/shared_arena.h"
#include "comm/transport/tcp/member_key.h"
#include "comm/transport/transport.h"
#include "server/admin/metrics.h"
#include "server/coordinator/backup.h"
#include "server/links/record_link.h"
#include "server/links/record_sinks.h"
#include "server/links/worker_link.h"
#include "server/service/journal_times.h"
#include "server/service/step_times.h"
#include "server/shard/shard.h"

namespace syncline {

struct EngineOptions {
  DataPlanePlan plan = {};
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  Logger log = {};
  Logger audit = {};            // logs refused peers, and why
  Metrics* metrics = nullptr;   // must outlive the engine; null: no metrics
  TraceTrack* trace = nullptr;  // must outlive the engine, which is its only user
  // A worker with more unread bytes than this loses its connection.
  uint64_t most_unread_bytes = WorkerLink::kMaxUnreadBytes;
};

struct EngineEvents {
  // All outputs of shards except replies.
  std::function<void(uint32_t job, const ShardOutput&)> on_output;
  // The backup of this job no longer receives records. `session_key` is that of
  // SendRecords; 0: this server holds the backup.
  std::function<void(uint32_t job, uint64_t session_key, const std::string& why)>
      on_backup_lost = [](uint32_t, uint64_t, const std::string&) {};
  // A backup that SendRecords started with kWithState now has the complete state of the shard.
  std::function<void(uint32_t job, uint64_t session_key)> on_backed_up = [](uint32_t,
                                                                            uint64_t) {};
  // The journal of a job that also has a backup has failed. Until LoseJournal, workers
  // are not answered about steps that it misses.
  std::function<void(uint32_t job)> on_journal_ended = [](uint32_t) {};
  // Answers RecordState and TakeSnapshot: the state is complete, or one block of it is
  // done.
  std::function<void(uint32_t job, const ShardBackedUp&)> on_recorded =
      [](uint32_t, const ShardBackedUp&) {};
};

struct EngineJobOptions {
  ShardOptions shard;  // the engine sets checksum and publish_memory
  std::vector<ShardBlock> blocks;
  // records go to a backup, at the address that SendRecords gives
  bool sends_records = false;
  bool keeps_journal = false;  // a journal takes all records from the first one on
  // If the journal fails, the job waits for LoseJournal before it continues.
  bool is_fenced = false;
  // Loads the shard's initial state, on the thread that calls Build. Null: starts empty.
  std::function<absl::Status(Shard&)> load = nullptr;
};

// A job's shard that was built and not adopted yet.
struct EngineJob {
  std::unique_ptr<Shard> shard = nullptr;
  size_t trained = 0;  // number of trained blocks
  bool sends_records = false;
  bool keeps_journal = false;
  bool is_fenced = false;
};

// A worker's incarnation, and the key that it shares with this server.
struct EngineMember {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  SecretKey key = {};
};

class Engine : private Receiver, private Acceptor {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Start(const EngineOptions& options,
                                                       EngineEvents events);
  ~Engine() override;  // stops

  // The transport's address, for the control plane.
  const std::string& address() const { return loop_->address(); }

  // Creates a job's shard: allocates and touches all its memory, which takes seconds for
  // a large one. Fails as Shard::Create. The engine must outlive the result.
  absl::StatusOr<EngineJob> Build(EngineJobOptions options);
  // Adds a built job. Replaces a job of the same number.
  void Adopt(uint32_t job, EngineJob built);
  // Sets the members that may connect for the job. The keys of all others are erased, and
  // their connections closed.
  void Admit(uint32_t job, std::vector<EngineMember> members);
  // Gives the shard an input from the coordinator. Unknown jobs are ignored.
  void Apply(uint32_t job, ShardInput input);
  // Sends the job's records to `address` (engine_backup.cc): kFromTheFirst all records,
  // kWithState first the present state of the shard.
  enum class Backups { kFromTheFirst, kWithState };
  void SendRecords(uint32_t job, const std::string& address, BackupPair as,
                   Backups since);
  // Notes that the first `records` records of the job's journal are on the disk.
  // UINT64_MAX: the journal has ended.
  void JournalDurable(uint32_t job, uint64_t records);
  // Makes the job continue without its journal.
  void LoseJournal(uint32_t job);
  // Emits the present state of the shard as records among the others, for a new journal.
  // `begin` is called on the engine's thread before the first of them, and returns
  // whether the journal wants them. Each further block follows once the disk has taken
  // some records. on_recorded reports the end.
  void RecordState(uint32_t job, std::function<bool()> begin);
  // Emits the state for the snapshot of a journal that continues, one block for each
  // order. on_recorded answers each order.
  void TakeSnapshot(uint32_t job, ShardBackUp::Kind order);
  // Stops sending records to the backup with that key, or to all if it is 0. The job
  // continues without it.
  void StopRecords(uint32_t job, uint64_t session_key);
  // Receives the records of another server's job (server/journal/record_bytes.h). `take`
  // is called on the engine's thread. True: the record was taken, and is acknowledged at
  // once. False: the record was taken, but there is no room for more; Acknowledge
  // acknowledges it later. An error ends the backup (on_backup_lost).
  using TakeRecord = std::function<absl::StatusOr<bool>(std::vector<std::byte> record)>;
  void TakeRecords(uint32_t job, BackupPair from, TakeRecord take);
  void Acknowledge(uint32_t job);
  // Stops taking records. Returns once the engine's thread takes no more.
  void StopTaking(uint32_t job);
  // Removes the job, and waits until the engine's thread no longer uses it. Null: no such
  // job. The caller frees the shard's memory.
  std::shared_ptr<Shard> Release(uint32_t job);
  std::vector<std::shared_ptr<Shard>> ReleaseAll();
  void Stop();

  // Progress for heartbeats: data-plane bytes in both directions, and the highest
  // version.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  struct JobReport {
    ShardProgress progress = {};
    ServerPhases phases = {};
    double window_fill = 0;  // highest of its workers' links (WorkerLink::window_fill)
    std::optional<RecordSender::Progress> backup = {};
  };
  // The latest report of all jobs from the engine's thread, and how long it has not
  // answered the previous request.
  struct LatestReport {
    std::map<uint32_t, JobReport> jobs = {};
    absl::Duration silent = {};
  };
  // Returns the latest report, and requests the next one.
  LatestReport AskProgress() ABSL_LOCKS_EXCLUDED(report_mutex_);

 private:
  using WorkerLife = std::pair<uint32_t, uint32_t>;  // rank, incarnation

  // A connection that a worker opened. Every message on it must carry that worker's name.
  class Connection;
  // Receives from a backup. Only acknowledgements of one job's records are accepted.
  class FromBackup;
  struct Job {
    // also held by worker links, whose sends may outlive the job
    std::shared_ptr<Shard> shard;
    std::map<WorkerLife, std::unique_ptr<WorkerLink>> workers;
    StepTimes times;
    JournalTimes journal;
    std::shared_ptr<FromBackup> from_backup;  // must outlive `records`
    RecordSenders records;                    // empty: no backup gets records
    RecordSinks sinks;
    bool is_fenced = false;
    // `begin` of RecordState, until its pass begins.
    std::function<bool()> begins_journal;
    // The journal's pass has more blocks. The next one follows once the last is durable.
    bool has_more = false;
    std::shared_ptr<JobTraffic> traffic;  // null: nothing is counted
  };
  // A shard of another server whose records this engine receives.
  struct Backup {
    BackupPair from;
    RecordReceiver receiver;
    TakeRecord take;
    std::shared_ptr<Endpoint> answers;
  };

  Engine(const EngineOptions& options, EngineEvents events);
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport();
  // Runs `task` on the engine's thread and waits for its end. Does nothing if the engine
  // has stopped.
  void Await(absl::FunctionRef<void()> task);

  const SecretKey* FindKey(std::string_view identity) override;
  ConnectOptions OnAccepted(const std::string& identity,
                            std::unique_ptr<Endpoint> endpoint) override;
  void OnRefused(const RefusedPeer& refused) override;
  void CloseConnection(const MemberIdentity& identity, uint64_t connection);
  // Returns true if the worker does not read its answers. It gets none any more, and its
  // connection is closed.
  bool CloseIfClogged(const MessageHeader& header, WorkerLink& link);
  void ForgetJob(uint32_t job);

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;
  void OnBorrowed(ByteView header, Landed payload) override;
  absl::StatusOr<MessageHeader> CheckArrival(ByteView header, size_t payload_bytes);
  absl::Status CheckSize(const MessageHeader& header, size_t payload_bytes) const;
  void TellWhyRefused(const MessageHeader& header);
  // `from`: the connection on which the message came. Null: it came through shared
  // memory.
  void Take(const MessageHeader& header, Landed payload, Connection* from);
  void TakeHello(Job& job, const MessageHeader& header, const Slice& payload);
  void TakeHello(Job& job, const MessageHeader& header, const Connection& from);
  void Greet(Job& job, const MessageHeader& hello, WorkerLink::Parts parts);
  void WelcomeAgain(const MessageHeader& hello, WorkerLink& link);
  void ForgetWorker(uint32_t job, WorkerLife worker, uint64_t connection);
  absl::Status CheckBackup(const MessageHeader& header, size_t payload_bytes) const;
  void TakeBackup(const MessageHeader& header, const Slice& payload, Connection* from);
  void AnswerRecords(const MessageHeader& hello, const Slice& payload, Connection* from);
  static void SendAck(uint32_t job, const Backup& backup);
  void BackUpNext(uint32_t id, Job& job, const ShardBackedUp& backed_up);
  void BeginPass(uint32_t id, Job& job);
  void GoOnWith(uint32_t id, Job& job, RecordSinks::Pass pass);
  // Goes on after a sink is lost.
  void GoOnWithout(uint32_t id, Job& job);
  void TakePull(Job& job, const MessageHeader& header);
  void Pump(uint32_t job, WorkerLife worker);
  void PumpWaiting();
  void CountWire(const TrafficCounts& now);
  static JobReport Report(const Job& job);

  void Run(uint32_t id, Job& job, const ShardInput& input);
  void Send(Job& job, const ShardReply& reply);
  void CloseNonMembers(Job& job);
  struct Arrival {
    const ShardMessage& message;
    absl::Duration time;
  };
  void CountInput(Job& job, const Arrival& arrival, const ShardOutputs& outputs);
  // Adds to the trace what the shard has done with the input since `began`.
  void Trace(Job& job, const ShardInput& input, const ShardOutputs& outputs,
             int64_t began);
  void CountApplied(uint32_t id, Job& job, const ShardApplied& applied);

  const EngineOptions options_;
  Repeats refused_;  // by source and reason
  const EngineEvents events_;
  const SteadyClock clock_;
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<uint64_t> step_ = 0;

  absl::Mutex report_mutex_;
  std::map<uint32_t, JobReport> report_ ABSL_GUARDED_BY(report_mutex_);
  std::optional<absl::Duration> asked_at_ ABSL_GUARDED_BY(report_mutex_);

  // Used by the loop's thread only.
  BufferPool pool_;
  std::shared_ptr<SharedArena> arena_;
  Transport* transport_ = nullptr;
  std::map<uint32_t, Job> jobs_;
  std::map<uint32_t, Backup> backups_;  // by job
  std::map<MemberIdentity, SecretKey> keys_;
  std::map<MemberIdentity, std::unique_ptr<Connection>> connections_;
  std::set<uint64_t> clogged_;  // connections that are being closed
  uint64_t next_connection_ = 1;
  // Workers whose links hold messages that wait for room.
  std::set<std::pair<uint32_t, WorkerLife>> waiting_;
  TrafficCounts counted_ = {};  // what the metrics have of the transport's traffic

  std::unique_ptr<TransportLoop> loop_;  // last: its thread uses all the others
};

}  // namespace syncline
