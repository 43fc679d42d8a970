// An engine of a simulated server, which does what server/service/engine.h does. It has
// the real shard and real links to workers over an in-process transport, its part of the
// server's disk, and its end of backups. It serves one job.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/codec.h"
#include "comm/transport/inproc/inproc.h"
#include "server/coordinator/coordinator.h"
#include "server/links/record_link.h"
#include "server/links/record_sinks.h"
#include "server/links/worker_link.h"
#include "server/shard/record.h"
#include "server/shard/shard.h"
#include "tests/sim/reference.h"
#include "tests/sim/simulation.h"
#include "tests/sim/traffic.h"

namespace syncline::sim {

// The records of a shard on disk. They outlive the process, but records that were not
// synced when it died may be lost.
struct ShardDisk {
  std::vector<std::shared_ptr<const ShardRecord>> records = {};  // null: was not kept
  size_t synced = 0;         // number of records that are synced
  bool begins_anew = false;  // starts with a snapshot; earlier records were deleted

  // Returns the version of each block that the synced records lead to.
  std::map<uint32_t, uint64_t> Versions() const;
};

class ServerEngine : private Receiver {
 public:
  struct Parts {
    EventQueue& events;
    InprocNetwork& network;
    Reference& reference;
    Traffic& traffic;
    const CodecRegistry& codecs;
    ShardDisk& disk;
    uint64_t seed = 0;  // of the times that its disk takes
    Fault fault = Fault::kNone;
    // A block was restored from the disk, at this version.
    std::function<void(uint32_t block, uint64_t version)> on_restored;
    // Outputs of the shard, except replies, records and ShardApplied.
    std::function<void(const ShardOutput&)> on_output;
    // The backup with that key has the complete state.
    std::function<void(uint64_t session_key)> on_backed_up;
    // As EngineEvents::on_backup_lost.
    std::function<void(uint64_t session_key, const std::string& why)> on_backup_lost;
    // The journal begins a snapshot.
    std::function<void()> on_snapshot;
    // The journal deleted everything before a snapshot. `version` is the highest version
    // of the snapshot's blocks.
    std::function<void(uint64_t version)> on_pruned;
    // A journal that was started again is complete.
    std::function<void()> on_whole;
    // A sync failed. The engine sends nothing more, and must be killed.
    std::function<void()> on_lost_sync;
    // A journal beside a backup ended. Workers are not told of steps that it lacks before
    // LoseJournal.
    std::function<void()> on_journal_ended = nullptr;
  };
  explicit ServerEngine(Parts parts);

  // Kills the engine. Messages under way still arrive. A random part of the unsynced
  // records survives.
  void Kill();

  // Configures the shard of a job. If it restores records, returns the lowest version of
  // the trained blocks.
  absl::StatusOr<uint64_t> Configure(const ConfigureJob& configure, uint32_t shard);
  void Drop();
  void Run(const ShardInput& input);

  std::string address() const { return transport_->address(); }
  uint32_t number() const { return options_.shard; }  // number of its shard
  bool Owns(uint32_t block) const { return owned_.contains(block); }
  const Shard& shard() const { return *shard_; }
  uint64_t bytes() const { return bytes_; }
  ShardProgress Progress();
  std::optional<RecordSender::Progress> backup() const;

  // Replays all records. Fails unless each block has the recorded digest at each version,
  // and everything equals the shard in the end.
  absl::Status CheckRecords();

  // ---- Its journal (server_engine_journal.cc) ----
  // Ends the journal, as if its disk were full.
  void EndJournal();
  // Starts an ended journal again.
  void BeginJournalAnew();
  // Starts it again on this disk, as another generation.
  void BeginJournalAnew(ShardDisk& disk);
  // Steps no longer wait for the journal.
  void LoseJournal();
  // Sets the disk of the journal. Call it before Configure.
  void UseDisk(ShardDisk& disk) { disk_ = &disk; }
  bool has_journal() const {
    return is_journaled_ && !has_ended_ && !begins_anew_ &&
           sinks_.awaits(RecordSinks::Sink::kJournal);
  }
  // Makes the next sync fail. Its records are dropped.
  void FailSync() { sync_fails_ = true; }

  // ---- Backups (server_engine_backup.cc) ----
  void SendRecords(const std::string& address, const BackupAt& at);
  // To the backup with that key; 0: to all.
  void StopRecords(uint64_t session_key);
  absl::StatusOr<uint64_t> TakeOver();
  // The coordinator has confirmed that this stand-in has the place. Later updates of the
  // previous server are undone.
  void TakePlace();
  // The engine no longer has the place. Updates of its shard do not count any more.
  void GiveUpPlace() { has_given_up_ = true; }
  // Returns its records while it is a stand-in.
  ShardDisk& memory() { return parts_.disk; }

 private:
  using WorkerLife = std::pair<uint32_t, uint32_t>;  // rank, incarnation

  void After(absl::Duration delay, std::function<void()> fn);
  void Keep(std::shared_ptr<const ShardRecord> record);
  void SyncSoon();
  void LoseSync();
  void SnapshotIfDue();
  void TakeSnapshot(ShardBackUp::Kind order);
  void NoteRecord(std::shared_ptr<const ShardRecord>& kept);
  void OnBackedUp(const ShardBackedUp& backed_up);
  void BeginPass();
  void GoOnWith(RecordSinks::Pass pass, absl::Duration delay);
  // Tells the shard how many records are durable, so that waiting steps continue.
  void Tell();
  bool ReachesFar(uint64_t version) const;
  void WholeIfSafe();
  void PruneIfSafe();
  void Prune();
  absl::StatusOr<uint64_t> Restore();
  absl::Status ForgetLedger();
  void Perform(const ShardOutput& output);
  absl::Status Compare(const Shard& replayed) const;

  void OfBackup(const MessageHeader& header, const Slice& payload);
  void OnBackupPass(size_t slot, const ShardBackedUp& backed_up);
  void TakeRecord(const MessageHeader& header, const Slice& payload);
  void Acknowledge();

  void Reply(const ShardReply& reply);
  void TakeHello(const MessageHeader& header, const Slice& payload);
  void TakeQuestion(const MessageHeader& header);
  void Forget(WorkerLife life, uint64_t connection);
  void Pump(WorkerLife life);
  void PumpAll();

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;
  void OnBorrowed(ByteView header, Landed payload) override;
  absl::StatusOr<MessageHeader> CheckArrival(ByteView header, size_t payload_bytes);
  void Take(const MessageHeader& header, Landed payload);
  bool IsCounted(const MessageHeader& header) const;
  void CountAgain(MessageHeader header, const Landed& payload);

  Parts parts_;
  BufferPool pool_;
  std::unique_ptr<Transport> transport_;
  std::map<WorkerLife, std::unique_ptr<WorkerLink>> workers_;
  uint64_t next_connection_ = 1;
  // Planted fault: the views that were sent twice, by worker, block and version.
  std::set<std::tuple<WorkerLife, uint32_t, uint64_t>> sent_twice_;
  std::shared_ptr<Shard> shard_;
  ShardOptions options_;
  std::vector<ShardBlock> blocks_;
  std::set<uint32_t> owned_;
  bool is_journaled_ = false;
  std::mt19937_64 random_;
  // Position of this process's first record among the disk's records. Negative if some of
  // its records were deleted.
  int64_t begun_at_ = 0;
  bool syncs_ = false;
  bool sync_fails_ = false;

  // ---- Journal ----
  std::mt19937_64 snapshots_random_;
  size_t snapshot_every_ = 0;  // number of records between two snapshots
  size_t since_snapshot_ = 0;  // number of records since the last snapshot
  struct Snapshot {
    size_t from = 0;       // position among the disk's records
    uint64_t version = 0;  // highest version of its blocks
    std::set<uint32_t> blocks = {};
    bool has_all = false;
  };
  std::optional<Snapshot> snapshot_;  // under way
  bool has_ended_ = false;
  bool begins_anew_ = false;
  // Number of journals so far. Syncs of earlier journals do not count.
  uint64_t journal_ = 0;
  bool is_fenced_ = false;    // the job has journals and backups
  bool is_stand_in_ = false;  // it is a stand-in or was one
  bool has_given_up_ = false;
  bool acknowledges_on_ = false;             // planted fault
  std::map<uint32_t, uint64_t> taken_over_;  // versions of blocks, until TakePlace
  bool has_states_ = false;  // a restarted journal has the state of all blocks
  ShardDisk* disk_;
  ShardDisk* next_disk_ = nullptr;  // where the journal is started again
  RecordSinks sinks_;
  RecordSenders senders_;  // to its backups; empty: it has none
  // The last pass for a backup began the disk's records, too (without a journal).
  bool begins_disk_ = false;
  // A stand-in that holds a backup: the pair, its received records, and the way back.
  std::optional<BackupPair> pair_;
  RecordReceiver receiver_;
  std::unique_ptr<Endpoint> answers_;
  bool has_all_records_ = true;  // the disk's records give the whole shard
  // False: the engine was killed. Events outlive it, and check this first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  uint64_t bytes_ = 0;
};

}  // namespace syncline::sim
