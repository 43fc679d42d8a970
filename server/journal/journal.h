// The journal of a server: the thread that writes the records of its shards to a disk, so
// that no engine ever does. Records that come while the disk is busy are one group, which
// is synced once.
//
//   DIR/JOB/9f03c1d2a4b5e677/shard-00003-000001.journal    (segment.h; one run of a job)
//
// An engine waits only when more than `backlog.bytes` of records are not on the disk. A
// disk that is full or takes no writes ends the journal of the job and not the job, and so
// does one that takes nothing for the backlog's patience: that of the job of which most
// waits when there is no room, and with EndIfStuck of each job of which anything waits, if
// its journal can begin anew. The log says so with path and bytes, State() and the metrics, too.
//
// A sync that fails is the end of all: the system may have dropped what it could not write,
// and would say so only once. Nothing is told to be on the disk from then on (on_lost).
//
// Once the disk takes files again, and has room, the journal begins anew: on_room has each
// engine say BeginAnew, then give what its shard is among its records (ShardBackUp), then
// say Whole. When all have, the journal goes on, and what was there before is deleted. Looked
// for after `retry`, again and again; after an attempt that failed ever more rarely.
//
// Segments that a complete checkpoint covers are deleted. So are those before a snapshot of
// the shard, which the journal takes once its records have become many (`snapshots`): it
// asks for the shard's blocks one by one (on_snapshot), as records come, and each is
// answered by TookState, the last by Whole.
//
//   Journal journal({.directory = "/data/journal", .log = log});
//   journal.Begin({.job = 7, .head = {.job = "night", ...}, .blocks = {...}});
//   journal.Name(7, "9f03c1d2a4b5e677");
//   journal.Take(7, engine, recorded.record);  // on the engine's thread
//
// Thread safety: all methods from any thread but its own. Only Take and Stop wait.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/steady_condition.h"
#include "server/checkpoint/blob_store.h"
#include "server/journal/backlog.h"
#include "server/journal/shard_log.h"
#include "server/shard/shard.h"

namespace syncline {

inline constexpr double kSnapshotFactor = 4;
// 0, or as often as a disk can bear, up to once in a long while. InvalidArgument says it.
absl::Status CheckSnapshotFactor(double factor);

struct JournalOptions {
  std::string directory = {};
  Logger log = {};
  BlobStore* checkpoints = nullptr;  // outlives it; null: nothing is deleted
  uint64_t segment_bytes = uint64_t{64} << 20;
  BacklogLimits backlog = {};
  absl::Duration retry = absl::Seconds(5);
  // `least` is a segment where it is less: less cannot be deleted.
  SnapshotLimits snapshots = {};
  // So many records of the job's engine, counted as Take was told of them since it began
  // (anew), are on the disk: all, once its journal has ended. Must not block, nor call the
  // journal.
  std::function<void(uint32_t job, uint32_t engine, uint64_t records)> on_durable =
      [](uint32_t, uint32_t, uint64_t) {};
  // Likewise: the job's journal may begin anew.
  std::function<void(uint32_t job)> on_room = [](uint32_t) {};
  // The journal of that job has begun anew as that generation, and counts.
  std::function<void(uint32_t job, uint32_t generation)> on_whole = [](uint32_t,
                                                                       uint32_t) {};
  // Likewise, once: a sync has failed, and the process must end. Says of which file, up to
  // where it is safe, and what to do.
  std::function<void(const absl::Status& why)> on_lost = [](const absl::Status&) {};
  // Likewise: the job's engine is to give a snapshot's first blocks, or its next ones.
  std::function<void(uint32_t job, uint32_t engine, ShardBackUp::Kind)> on_snapshot =
      [](uint32_t, uint32_t, ShardBackUp::Kind) {};
};

// What a server has of a job.
struct JournaledJob {
  uint32_t job = 0;
  SegmentHead head = {};  // of engine 0's; the others count on from its shard
  std::vector<std::vector<uint32_t>> blocks = {};   // of each engine
  std::vector<std::vector<uint32_t>> trained = {};  // of them: those that make steps
  bool may_begin_anew = false;                      // and take snapshots
  std::vector<uint64_t> state_bytes = {};  // of each engine's shard, about; none: unknown
  // It has a backup, too (ADR 38): once it has ended it begins anew when Allow has said so,
  // as the next generation, and is whole (on_whole) when no block of the job can be behind it.
  bool is_fenced = false;
  uint32_t generation = 0;
  bool begins_anew = false;  // there is nothing yet, and other shards have made steps
  // Of a run that goes on: its name, and what there is of each engine.
  std::string run = {};
  std::vector<ShardTail> tails = {};
};

struct JournalState {
  uint64_t durable = 0;     // every trained block's records below it are on the disk
  uint64_t taken = 0;       // the highest version of any block that it was told of
  uint64_t bytes = 0;       // written
  uint64_t disk_bytes = 0;  // of them, on the disk still
  // The version that every block of the server has records from; 0: the first.
  uint64_t begins_at = 0;
  uint64_t snapshots = 0;  // that were taken, of shards
  std::string error = {};  // why it ended; empty: it goes on
  bool has_ended = false;  // and does not begin anew yet
  uint64_t endings = 0;    // that there were

  uint64_t lag() const { return taken > durable ? taken - durable : 0; }
};

class Journal {
 public:
  explicit Journal(JournalOptions options);
  ~Journal();  // stops

  // Makes a folder for it, and tries whether it takes files; errors name it.
  absl::Status Begin(JournaledJob job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the journals of which something waits for a disk that is stuck, if they can begin
  // anew. To be called often, from a thread that writes to no disk: where it was not for half
  // of the patience, this process stood still, and knows nothing of the disk.
  void EndIfStuck() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of this run of the job, the same on all servers. Before the first record; later ones
  // change nothing.
  void Name(uint32_t job, const std::string& run) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(uint32_t job, uint32_t engine, std::shared_ptr<const ShardRecord> record)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // One that is fenced and has ended may begin anew as that generation.
  void Allow(uint32_t job, uint32_t generation) ABSL_LOCKS_EXCLUDED(mutex_);
  // From here on Take gives what the engine's shard is, and its records; false: not now.
  bool BeginAnew(uint32_t job, uint32_t engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // What on_snapshot has asked for was taken, and there is more.
  void TookState(uint32_t job, uint32_t engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // What was taken is all that the engine's shard is.
  void Whole(uint32_t job, uint32_t engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // This server's part of a checkpoint at that version is written: once all of it is, what
  // it covers can go.
  void Saved(uint32_t job, uint64_t step) ABSL_LOCKS_EXCLUDED(mutex_);
  // What was taken is still written.
  void Drop(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mutex_);

  // Empty for jobs that have none, or whose run has no name yet.
  std::string RunOf(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing for jobs that have no journal.
  std::optional<JournalState> State(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);

  // Writes what was taken.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Phase { kGoesOn, kEnded, kBeginsAnew };
  // What its thread is at. Deleting a thousand segments, or reading the heads of a checkpoint,
  // takes longer than a sync.
  enum class Stage { kWrites, kTidies };
  struct Job {
    uint32_t id = 0;
    uint64_t number = 0;  // of all that there ever were
    uint32_t engines = 0;
    Phase phase = Phase::kGoesOn;
    bool may_begin_anew = false;
    bool is_fenced = false;
    bool is_allowed = true;      // to begin anew now
    bool has_all_parts = false;  // of one that begins anew
    uint32_t generation = 0;
    absl::Duration retry = {};  // after it has ended
    absl::Duration retry_at = {};
    std::set<uint32_t> silent = {};   // engines whose records are not taken
    std::set<uint32_t> partial = {};  // engines that began anew, and are not whole
    SegmentHead head = {};
    std::string run = {};
    JournalState state = {};
    std::set<uint64_t> saved = {};  // versions whose checkpoints may not be complete yet
    std::vector<ShardLog> shards;   // of its thread
  };
  struct Event {
    enum class Kind { kRecord, kTookState, kWhole };
    Kind kind = Kind::kRecord;
    std::shared_ptr<Job> job = {};
    uint32_t engine = 0;
    std::shared_ptr<const ShardRecord> record = {};  // null: it is no record
    uint64_t bytes = 0;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteGroup(const std::deque<Event>& events) ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(const Event& event, const std::string& folder) ABSL_LOCKS_EXCLUDED(mutex_);
  void SyncAll(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishBeginning(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishIfFarEnough(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Say(Event::Kind kind, uint32_t job, uint32_t engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of what is no record, once the records before it are synced.
  void Heed(const Event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishSnapshots(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void AskForSnapshots(const std::shared_ptr<Job>& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void ShowSize(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void LookForRoom() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckRoom(const Job& job) const;
  std::string FolderOfRun(const Job& job) const;
  void Fail(Job& job, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(Job& job, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing when that was said.
  std::optional<absl::Status> Lose(Job& job, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WaitForRoom(Job& job, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Job& Largest(Job& otherwise) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string WhyStuck() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int TimesAsPatient() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCurrent(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enter(Stage stage) ABSL_LOCKS_EXCLUDED(mutex_);
  std::deque<Event> NextGroup() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellDurable(const Job& job, uint32_t engine, uint64_t records)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prune() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Covers(Job& job, uint64_t step) ABSL_LOCKS_EXCLUDED(mutex_);

  const JournalOptions options_;
  const SteadyClock clock_;

  absl::Mutex mutex_;
  SteadyCondition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_lost_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;  // jobs
  Backlog backlog_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Job>> writing_ ABSL_GUARDED_BY(mutex_);  // of the group
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kTidies;
  absl::Duration looked_at_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
