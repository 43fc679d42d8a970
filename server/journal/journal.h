// The journal of a server: a thread that writes the records of its shards to a disk, so
// that no engine ever does. Records that come while the disk is busy form one group,
// which is synced once.
//
//   DIR/JOB/9f03c1d2a4b5e677/shard-00003-000001.journal    (segment.h; one run of a job)
//
// An engine waits only if more than `backlog.bytes` of records are not on the disk. A
// disk that is full or refuses writes ends the journal of the job, but not the job. A
// disk that takes nothing for the backlog's patience is stuck. If there is no room
// either, the journal of the job with the largest backlog ends. EndIfStuck ends the
// journals of all jobs that wait and can start over. The log, State() and the metrics
// show the reason, with path and bytes.
//
// A sync that fails ends the whole server: the system may have dropped what it could not
// write, and reports that only once. From then on no record is reported as durable
// (on_lost).
//
// A journal that has ended starts over once the disk takes files again and has room.
// After on_room, each engine calls BeginAnew, gives the state of its shard among its
// records (ShardBackUp), and then calls Whole. When all engines have, the journal
// continues, and its earlier segments are deleted. The journal looks for room every
// `retry`, and less often after each failed attempt.
//
// Segments that a complete checkpoint covers are deleted. So are those before a snapshot
// of the shard, which the journal takes once there are many records (`snapshots`). It
// asks for the blocks one by one (on_snapshot) as records come. The engine answers each
// request with TookState, the last one with Whole.
//
//   Journal journal({.directory = "/data/journal", .log = log});
//   journal.Begin({.job = 7, .head = {.job = "night", ...}, .blocks = {...}});
//   journal.Name(7, "9f03c1d2a4b5e677");
//   journal.Take(7, engine, recorded.record);  // on the engine's thread
//
// Thread safety: all methods may be called from any thread but the journal's own. Only
// Take and Stop may block.
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
// Fails with InvalidArgument, and a message for the user, unless the factor is 0 or
// within the allowed range (1 to 1000).
absl::Status CheckSnapshotFactor(double factor);

struct JournalOptions {
  std::string directory = {};
  Logger log = {};
  // Must outlive the journal. Null: no segment is deleted for a checkpoint.
  BlobStore* checkpoints = nullptr;
  uint64_t segment_bytes = uint64_t{64} << 20;
  BacklogLimits backlog = {};
  // Time between two looks for room, after a journal has ended.
  absl::Duration retry = absl::Seconds(5);
  // A smaller `least` counts as segment_bytes, because less than a segment cannot be
  // deleted.
  SnapshotLimits snapshots = {};
  // Called when the first `records` records of the job's engine are on the disk. The
  // count starts with the first Take, and again with each BeginAnew. UINT64_MAX: the
  // journal has ended. Like all callbacks here, it must neither block nor call the
  // journal.
  std::function<void(uint32_t job, uint32_t engine, uint64_t records)> on_durable =
      [](uint32_t, uint32_t, uint64_t) {};
  // Called when the job's journal may start over.
  std::function<void(uint32_t job)> on_room = [](uint32_t) {};
  // Called when the job's journal has started over as that generation, and is valid.
  std::function<void(uint32_t job, uint32_t generation)> on_whole = [](uint32_t,
                                                                       uint32_t) {};
  // Called once, when a sync has failed and the process must end. `why` names the file,
  // the version up to which the job is safe, and what to do.
  std::function<void(const absl::Status& why)> on_lost = [](const absl::Status&) {};
  // Called to ask the job's engine for a snapshot's first or next blocks.
  std::function<void(uint32_t job, uint32_t engine, ShardBackUp::Kind)> on_snapshot =
      [](uint32_t, uint32_t, ShardBackUp::Kind) {};
};

// What a server has of a job.
struct JournaledJob {
  uint32_t job = 0;
  // The head for engine 0. The shards of the other engines have the next numbers.
  SegmentHead head = {};
  std::vector<std::vector<uint32_t>> blocks = {};   // by engine
  std::vector<std::vector<uint32_t>> trained = {};  // by engine: blocks that make steps
  // Whether its journal may start over, and take snapshots.
  bool may_begin_anew = false;
  // Approximate bytes of state of each engine's shard. Empty: unknown.
  std::vector<uint64_t> state_bytes = {};
  // True if the job also has a backup (ADR 38). A journal that has ended then starts over
  // only after Allow, as the next generation. It is whole (on_whole) when no block of the
  // job can be further behind.
  bool is_fenced = false;
  uint32_t generation = 0;
  // True if the server has taken over: it has no journal yet, but other shards have made
  // steps.
  bool begins_anew = false;
  // For a run that continues: its name, and the existing segments of each engine.
  std::string run = {};
  std::vector<ShardTail> tails = {};
};

struct JournalState {
  // All records of trained blocks below this version are on the disk.
  uint64_t durable = 0;
  // The highest version of any block that the journal was told of.
  uint64_t taken = 0;
  uint64_t bytes = 0;       // written to this journal
  uint64_t disk_bytes = 0;  // of them, still on the disk
  // The version from which on every block of the server has records. 0: from the first.
  uint64_t begins_at = 0;
  uint64_t snapshots = 0;  // snapshots of shards taken so far
  std::string error = {};  // why the journal ended; empty: it goes on
  bool has_ended = false;  // true until it starts over
  uint64_t endings = 0;    // how often it has ended

  uint64_t lag() const { return taken > durable ? taken - durable : 0; }
};

class Journal {
 public:
  explicit Journal(JournalOptions options);
  ~Journal();  // calls Stop

  // Creates the job's folder and tests whether it takes files. Errors name the folder.
  absl::Status Begin(JournaledJob job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the journals that wait for a disk that is stuck, if they can start over. Call it
  // often, from a thread that writes to no disk. If it was not called for half of the
  // patience, this process stood still and knows nothing about the disk.
  void EndIfStuck() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the name of this run of the job, which is the same on all servers. Call it
  // before the first record; later calls change nothing.
  void Name(uint32_t job, const std::string& run) ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues a record for the disk. Blocks while the backlog has no room.
  void Take(uint32_t job, uint32_t engine, std::shared_ptr<const ShardRecord> record)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Allows a fenced journal that has ended to start over as that generation.
  void Allow(uint32_t job, uint32_t generation) ABSL_LOCKS_EXCLUDED(mutex_);
  // Declares that Take gives the state of the engine's shard and its records from here
  // on. Returns false if the journal cannot start over now.
  bool BeginAnew(uint32_t job, uint32_t engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // Declares that the blocks that on_snapshot asked for were taken, and more follow.
  void TookState(uint32_t job, uint32_t engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // Declares that what was taken is the whole state of the engine's shard.
  void Whole(uint32_t job, uint32_t engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // Declares that this server's part of a checkpoint at that version is written. Once the
  // whole checkpoint is, the segments that it covers may be deleted.
  void Saved(uint32_t job, uint64_t step) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets the job. What was taken is still written.
  void Drop(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the name of the job's run. Empty if the job has no journal or its run no name
  // yet.
  std::string RunOf(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns nothing for jobs without a journal.
  std::optional<JournalState> State(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);

  // Writes what was taken, and ends the thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Phase { kGoesOn, kEnded, kBeginsAnew };
  // What the journal's thread is doing. Tidying is given more time: deleting a thousand
  // segments, or reading the heads of a checkpoint, takes longer than a sync.
  enum class Stage { kWrites, kTidies };
  struct Job {
    uint32_t id = 0;
    uint64_t number = 0;  // counts all jobs that ever began
    uint32_t engines = 0;
    Phase phase = Phase::kGoesOn;
    bool may_begin_anew = false;
    bool is_fenced = false;
    bool is_allowed = true;  // to start over now
    // True if the journal starts over and all engines have called Whole.
    bool has_all_parts = false;
    uint32_t generation = 0;
    absl::Duration retry = {};  // until the next attempt, after it has ended
    absl::Duration retry_at = {};
    std::set<uint32_t> silent = {};  // engines whose records are not taken
    // Engines that have begun to start over, and are not whole.
    std::set<uint32_t> partial = {};
    SegmentHead head = {};
    std::string run = {};
    JournalState state = {};
    // Versions whose checkpoints may not be complete yet.
    std::set<uint64_t> saved = {};
    std::vector<ShardLog> shards;  // used by the journal's thread only
  };
  struct Event {
    enum class Kind { kRecord, kTookState, kWhole };
    Kind kind = Kind::kRecord;
    std::shared_ptr<Job> job = {};
    uint32_t engine = 0;
    std::shared_ptr<const ShardRecord> record = {};  // null unless kind is kRecord
    uint64_t bytes = 0;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteGroup(const std::deque<Event>& events) ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(const Event& event, const std::string& folder) ABSL_LOCKS_EXCLUDED(mutex_);
  void SyncAll(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishBeginning(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishIfFarEnough(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Say(Event::Kind kind, uint32_t job, uint32_t engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // Handles an event that is not a record, once the records before it are synced.
  void Heed(const Event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishSnapshots(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void AskForSnapshots(const std::shared_ptr<Job>& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void ShowSize(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void LookForRoom() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckRoom(const Job& job) const;
  std::string FolderOfRun(const Job& job) const;
  void Fail(Job& job, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(Job& job, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns nothing if the loss was reported before.
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
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;  // number of jobs begun
  Backlog backlog_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Job>> writing_
      ABSL_GUARDED_BY(mutex_);  // jobs of the group being written
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kTidies;
  absl::Duration looked_at_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
