// An engine: one thread of a server with its own transport and the shards it owns, one
// for each job. It moves bytes between workers and shards, and what the coordinator must
// know to `EngineEvents`.
//
// Between hosts a worker connects with the key that Admit told (comm/transport/tcp); what
// it sends must carry the name that it proved, and is answered on the same connection.
// Within a host its kHello carries the address to answer to, and must show the session
// key of a member. Sizes are checked against the shard before memory is
// taken for a payload. Each worker that was welcomed has a WorkerLink (server/links), by
// which all answers go. Those to workers without one are dropped: workers repeat what was
// under way once they are welcomed anew.
//
// A job's memory is taken by Build on the caller's thread and given back where Release's
// answer ends: the engine's own thread only takes it over and lets go of it, so that one
// job's size is never another job's pause.
//
// Thread safety: all public methods may be called from any thread but the engine's own;
// what they ask for happens on the engine's thread, in the order of the calls. Events are
// called on that thread and must not block.
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
  Logger audit = {};            // who was turned away, and why
  Metrics* metrics = nullptr;   // outlives the engine; null counts nothing
  TraceTrack* trace = nullptr;  // likewise; of this engine alone
  // A worker that leaves more than this unread loses its connection.
  uint64_t most_unread_bytes = WorkerLink::kMostUnreadBytes;
};

struct EngineEvents {
  // All but replies.
  std::function<void(uint32_t job, const ShardOutput&)> on_output;
  // No backup hears of this job's records any more.
  std::function<void(uint32_t job, const std::string& why)> on_backup_lost =
      [](uint32_t, const std::string&) {};
  // What SendRecords said is anew has all of this engine's shard.
  std::function<void(uint32_t job, uint64_t session_key)> on_backed_up = [](uint32_t,
                                                                            uint64_t) {};
  // The journal of this job has ended: nobody hears of what it misses before LoseJournal. Of
  // jobs that have a backup, too.
  std::function<void(uint32_t job)> on_journal_ended = [](uint32_t) {};
  // What RecordAnew has asked for has come, or TakeSnapshot: all of it, or one of many.
  std::function<void(uint32_t job, const ShardBackedUp&)> on_recorded =
      [](uint32_t, const ShardBackedUp&) {};
};

struct EngineJobOptions {
  ShardOptions shard;  // checksum and publish_memory are the engine's choice
  std::vector<ShardBlock> blocks;
  bool sends_records = false;  // to a backup: SendRecords says where that is
  bool keeps_journal = false;  // from the first record on
  // It goes on without its journal once LoseJournal says so, and not by itself.
  bool is_fenced = false;
  // What the shard begins with, if that is not nothing; on the caller's thread of Build.
  std::function<absl::Status(Shard&)> load = nullptr;
};

// A job's part on an engine, not taken over yet.
struct EngineJob {
  std::unique_ptr<Shard> shard = nullptr;
  size_t trained = 0;  // blocks
  bool sends_records = false;
  bool keeps_journal = false;
  bool is_fenced = false;
};

// A worker's life, and what it shares with this server.
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

  // Of the transport; travels over the control plane.
  const std::string& address() const { return loop_->address(); }

  // Takes and touches all memory of a job's part: seconds for a large one. Fails as
  // Shard::Create. The engine outlives what is built.
  absl::StatusOr<EngineJob> Build(EngineJobOptions options);
  // Replaces a job of that number.
  void Adopt(uint32_t job, EngineJob built);
  // From now on these may connect for the job, and nobody else: the keys of others are
  // erased, and their connections closed.
  void Admit(uint32_t job, std::vector<EngineMember> members);
  // A ShardPrepare, ShardCommit or ShardDecision. Unknown jobs are ignored.
  void Apply(uint32_t job, ShardInput input);
  // Where the records of the job go (engine_backup.cc): what was recorded before, too, or,
  // anew, what the shard is by now.
  enum class Backups { kFromTheFirst, kAnew };
  void SendRecords(uint32_t job, const std::string& address, BackupPair as,
                   Backups since);
  // So many of the records that its journal took are on the disk; all ones: it has ended.
  void JournalDurable(uint32_t job, uint64_t records);
  // Its journal is not waited for any more.
  void LoseJournal(uint32_t job);
  // What the job's shard is by now comes as records among the others, for a journal that
  // begins anew; `begin` is called on the engine's thread before the first of them, and
  // says whether they are wanted. The next block follows when the disk has
  // taken something; on_recorded ends it.
  void RecordAnew(uint32_t job, std::function<bool()> begin);
  // Likewise for one that goes on, but block by block: on_recorded answers each order.
  void TakeSnapshot(uint32_t job, ShardBackUp::Kind order);
  // Nowhere: nothing waits for them any more.
  void StopRecords(uint32_t job);
  // Of another server's job, as bytes (server/journal/record_bytes.h), on the engine's
  // thread. Those that are taken are acknowledged; after one with which there was no room
  // any more, when Acknowledge says so. An error ends it: on_backup_lost.
  using TakeRecord = std::function<absl::StatusOr<bool>(std::vector<std::byte> record)>;
  void TakeRecords(uint32_t job, BackupPair from, TakeRecord take);
  void Acknowledge(uint32_t job);
  // Waits until the engine's thread takes none any more.
  void StopTaking(uint32_t job);
  // Waits until the engine's thread has let go of the job; null when it is not there.
  // Whoever ends the shard waits for its memory.
  std::shared_ptr<Shard> Release(uint32_t job);
  std::vector<std::shared_ptr<Shard>> ReleaseAll();
  void Stop();

  // Progress, for heartbeats: data-plane bytes in both directions, and the highest
  // version reached.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  struct JobReport {
    ShardProgress progress = {};
    ServerPhases phases = {};
    std::optional<RecordSender::Progress> backup = {};
  };
  // Of all jobs, as the engine's thread said last, and for how long it has owed the
  // answer to the question before. Asks again.
  struct Report {
    std::map<uint32_t, JobReport> jobs = {};
    absl::Duration silent = {};
  };
  Report AskProgress() ABSL_LOCKS_EXCLUDED(report_mutex_);

 private:
  using WorkerLife = std::pair<uint32_t, uint32_t>;  // rank, incarnation

  // What a worker opened; its messages are its own.
  class Connection;
  // The connection to a backup: nothing but acknowledgements of a job's records comes.
  class FromBackup;
  struct Job {
    std::shared_ptr<Shard> shard;  // sends that are under way tell it when they are done
    std::map<WorkerLife, std::unique_ptr<WorkerLink>> workers;
    StepTimes times;
    JournalTimes journal;
    std::shared_ptr<FromBackup> from_backup;  // outlives records
    std::unique_ptr<RecordSender> records;    // null: they go to no backup
    RecordSinks sinks;
    bool is_fenced = false;
    std::function<bool()> begins_journal;  // RecordAnew's, until its turn comes
    bool has_more = false;  // to record anew, once what was recorded is durable
    std::shared_ptr<JobTraffic> traffic;  // null: nothing is counted
  };
  // Of another server.
  struct Backup {
    BackupPair from;
    RecordReceiver receiver;
    TakeRecord take;
    std::shared_ptr<Endpoint> answers;
  };

  Engine(const EngineOptions& options, EngineEvents events);
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport();
  // Runs `task` on the engine's thread and waits for its end; not at all once the engine
  // stops.
  void Await(absl::FunctionRef<void()> task);

  const SecretKey* FindKey(std::string_view identity) override;
  ConnectOptions OnAccepted(const std::string& identity,
                            std::unique_ptr<Endpoint> endpoint) override;
  void OnRefused(const RefusedPeer& refused) override;
  void CloseConnection(const MemberIdentity& identity, uint64_t connection);
  // True when the worker does not read, and gets no more answers: its connection ends.
  bool CloseIfClogged(const MessageHeader& header, WorkerLink& link);
  void ForgetJob(uint32_t job);

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;
  void OnBorrowed(ByteView header, Landed payload) override;
  absl::StatusOr<MessageHeader> CheckArrival(ByteView header, size_t payload_bytes);
  absl::Status CheckSize(const MessageHeader& header, size_t payload_bytes) const;
  void TellWhyRefused(const MessageHeader& header);
  // `from`: the connection it came on; null in shared memory.
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
  void TakeQuestion(Job& job, const MessageHeader& header);
  void Pump(uint32_t job, WorkerLife worker);
  void PumpWaiting();
  void CountWire(const TrafficCounts& now);

  void Run(uint32_t id, Job& job, const ShardInput& input);
  void Send(Job& job, const ShardReply& reply);
  void CloseStrangers(Job& job);
  struct Arrival {
    const ShardMessage& message;
    absl::Duration time;
  };
  void CountInput(Job& job, const Arrival& arrival, const ShardOutputs& outputs);
  // What the shard did with it, since `began`.
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

  // Of the loop thread.
  BufferPool pool_;
  std::shared_ptr<SharedArena> arena_;
  Transport* transport_ = nullptr;
  std::map<uint32_t, Job> jobs_;
  std::map<uint32_t, Backup> backups_;  // by job
  std::map<MemberIdentity, SecretKey> keys_;
  std::map<MemberIdentity, std::unique_ptr<Connection>> connections_;
  std::set<uint64_t> clogged_;  // connections that are being closed
  uint64_t next_connection_ = 1;
  // Those whose links wait for room.
  std::set<std::pair<uint32_t, WorkerLife>> waiting_;
  TrafficCounts counted_ = {};  // in the metrics

  std::unique_ptr<TransportLoop> loop_;  // last: its thread uses all the others
};

}  // namespace syncline
