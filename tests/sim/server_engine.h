// An engine of a simulated server, as server/service/engine.h is one: the real shard and the
// real links to workers behind an in-process transport, its part of the server's disk, and
// its end of backups. One job.
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

// What a shard has written down. It outlives the process; what was not synced when that died
// may be lost.
struct ShardDisk {
  std::vector<std::shared_ptr<const ShardRecord>> records = {};  // null: was not kept
  size_t synced = 0;                                             // of them
  bool begins_anew = false;  // with a snapshot: those before it were deleted

  // Of each block, the version that the records lead to which were synced.
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
    uint64_t seed = 0;  // how long its disk takes
    Fault fault = Fault::kNone;
    // A block is back from the disk, at that version.
    std::function<void(uint32_t block, uint64_t version)> on_restored;
    // All but replies, records and what was applied.
    std::function<void(const ShardOutput&)> on_output;
    std::function<void()> on_backed_up;
    std::function<void(const std::string& why)> on_backup_lost;
    // Of its journal: it takes a snapshot; what precedes that is gone, and its blocks are
    // at most at that version; it began anew, and is whole.
    std::function<void()> on_snapshot;
    std::function<void(uint64_t version)> on_pruned;
    std::function<void()> on_whole;
    std::function<void()> on_lost_sync;  // it says nothing more, and is to be killed
    // Of a journal beside a backup: nobody hears of what it misses before LoseJournal.
    std::function<void()> on_journal_ended = nullptr;
  };
  explicit ServerEngine(Parts parts);

  // What is on its way stays there; of what was not synced a random part is left.
  void Kill();

  // Its part of a job. With records to go on from, the lowest version of what it trains.
  absl::StatusOr<uint64_t> Configure(const ConfigureJob& configure, uint32_t shard);
  void Drop();
  void Run(const ShardInput& input);

  std::string address() const { return transport_->address(); }
  uint32_t number() const { return options_.shard; }  // of its shard
  bool Owns(uint32_t block) const { return owned_.contains(block); }
  const Shard& shard() const { return *shard_; }
  uint64_t bytes() const { return bytes_; }
  ShardProgress Progress();
  std::optional<RecordSender::Progress> backup() const;

  // Replays all that the shard has recorded: block by block, version by version, and at the
  // end, it must be what the shard was.
  absl::Status CheckRecords();

  // ---- Its journal (server_engine_journal.cc) ----
  // Nothing can be written any more: nobody waits for it.
  void EndJournal();
  void BeginJournalAnew();
  // Likewise, as another generation.
  void BeginJournalAnew(ShardDisk& disk);
  void LoseJournal();
  // Where its journal is, from its configuration on.
  void UseDisk(ShardDisk& disk) { disk_ = &disk; }
  bool has_journal() const {
    return is_journaled_ && !has_ended_ && !begins_anew_ &&
           sinks_.awaits(RecordSinks::Sink::kJournal);
  }
  // The next sync fails, and drops what it was for.
  void FailSync() { sync_fails_ = true; }

  // ---- Backups (server_engine_backup.cc) ----
  void SendRecords(const std::string& address, const BackupAt& at);
  void StopRecords();
  absl::StatusOr<uint64_t> TakeOver();
  // Its records while it is a stand-in.
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
  // What waits for what is safe goes on.
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
  void TakeRecord(const MessageHeader& header, const Slice& payload);

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
  // Views, for a planted fault: to whom, the block, the version.
  std::set<std::tuple<WorkerLife, uint32_t, uint64_t>> sent_twice_;
  std::shared_ptr<Shard> shard_;
  ShardOptions options_;
  std::vector<ShardBlock> blocks_;
  std::set<uint32_t> owned_;
  bool is_journaled_ = false;
  std::mt19937_64 random_;
  // Of the disk's records: those before are of another process. Below 0 when some of this
  // one were deleted.
  int64_t begun_at_ = 0;
  bool syncs_ = false;
  bool sync_fails_ = false;
  // Its journal.
  std::mt19937_64 snapshots_random_;
  size_t snapshot_every_ = 0;  // records
  size_t since_snapshot_ = 0;  // likewise
  struct Snapshot {
    size_t from = 0;       // of the disk's records
    uint64_t version = 0;  // the highest of its blocks
    std::set<uint32_t> blocks = {};
    bool has_all = false;
  };
  std::optional<Snapshot> snapshot_;  // that is under way
  bool has_ended_ = false;
  bool begins_anew_ = false;
  uint64_t journal_ =
      0;  // how often it began anew: what was synced of one before is gone
  bool is_fenced_ = false;    // it has a backup, too
  bool is_stand_in_ = false;  // or was one
  bool has_states_ = false;   // of one that begins anew: all that the shard is
  ShardDisk* disk_;
  ShardDisk* next_disk_ = nullptr;  // where it begins anew
  RecordSinks sinks_;
  std::unique_ptr<RecordSender> records_;  // to its backup; null: it has none any more
  std::optional<BackupPair> pair_;         // of a stand-in that holds a backup: from whom
  RecordReceiver receiver_;                // likewise
  std::unique_ptr<Endpoint> answers_;      // likewise
  bool has_all_records_ = true;            // its disk, of what the shard is
  // Events outlive a killed process; they look here first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  uint64_t bytes_ = 0;
};

}  // namespace syncline::sim
