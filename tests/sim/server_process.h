// A server of the simulation, as ServerNode is one: its engines behind a simulated control
// stream, one job.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/codec/codec.h"
#include "comm/transport/inproc/inproc.h"
#include "server/coordinator/held_job.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/reference.h"
#include "tests/sim/server_engine.h"
#include "tests/sim/simulation.h"
#include "tests/sim/traffic.h"

namespace syncline::sim {

// A server's disk, which outlives its process.
struct Disk {
  std::string job = {};  // whose records they are; empty: none
  uint32_t first_shard = 0;
  std::vector<ShardDisk> shards = {};  // of its engines
};

// A journal of one place, of jobs that have backups, too.
struct JournalDisk {
  uint32_t generation = 0;
  bool is_whole = false;
  std::vector<ShardDisk> shards = {};  // of the place's engines
};
// All that a host's disk has, which outlives all of its processes.
struct HostDisk {
  std::map<uint32_t, std::vector<std::shared_ptr<JournalDisk>>> places = {};  // by shard
  bool is_full = false;
};

class ServerProcess {
 public:
  struct Parts {
    EventQueue& events;
    InprocNetwork& network;
    ControlPlane& control;
    Reference& reference;
    Traffic& traffic;
    const CodecRegistry& codecs;
    absl::Duration heartbeat_interval;
    uint32_t engines = 1;
    Disk& disk;
    uint64_t seed = 0;  // how long its disk takes, and building
    // A block is back from the disk, at that version.
    std::function<void(uint32_t block, uint64_t version)> on_restored = [](uint32_t,
                                                                           uint64_t) {};
    // It is to start a stand-in.
    std::function<void(const HoldBackup&)> on_hold = [](const HoldBackup&) {};
    // Of its journal: a snapshot begins, or what precedes one of that version is gone.
    std::function<void()> on_snapshot = [] {};
    std::function<void(uint64_t version)> on_pruned = [](uint64_t) {};
    std::function<void()> on_lost_sync = [] {};         // it is to be killed
    std::optional<StandInFor> stand_in = std::nullopt;  // it is one
    Fault fault = Fault::kNone;
    HostDisk* host_disk = nullptr;  // where journals beside backups are
    std::string job = {};           // whose they are
  };

  ServerProcess(Parts parts, std::string name);

  // kill -9, and perhaps the power: of what was not synced a random part is left.
  void Kill();

  bool Owns(uint32_t block) const { return EngineOf(block) != nullptr; }
  bool Is(uint32_t server) const { return identity_ && identity_->server == server; }
  // As when the coordinator has said so. A planted fault when it has not.
  void GoOnWithoutBackup();
  bool is_configured() const { return configured_ && !takes_records_; }
  // Of the place that it serves, or is to take.
  uint32_t first_shard() const { return first_shard_; }
  bool Holds(uint32_t first_shard) const {
    return takes_records_ && first_shard_ == first_shard;
  }
  bool HasJournal() const;
  // There is room again.
  void TryJournal();
  // Something of the job would come back with its disk, and all that anybody has seen.
  bool HasSynced() const;
  // Its disk fails for all engines, and is there again: their journals begin anew.
  void EndJournal();
  void BeginJournalAnew();
  // The next sync of each engine fails.
  void FailSyncs();
  std::span<const float> block_weights(uint32_t block) const;  // REQUIRES: Owns(block)
  std::vector<std::string> addresses() const;
  JobProgress Progress();
  absl::Status CheckRecords();

 private:
  void Attach();
  void OnLost();
  void After(absl::Duration delay, std::function<void()> fn);
  ServerHello MakeHello() const;
  void Beat();
  void OnControl(const CoordinatorBody& body);
  void OnDrop(const DropJob& drop);
  void OnBackup(const CoordinatorBody& body);
  void BuildSoon(const ConfigureJob& configure);
  void Configure(const ConfigureJob& configure);
  void RunAll(const ShardInput& input);
  void OnOutput(uint32_t engine, const ShardOutput& output);
  std::set<uint32_t> AllEngines() const;

  // Journals beside backups (server_process_journal.cc).
  void ListJournals(ServerHello& hello) const;
  void UseJournal(std::shared_ptr<JournalDisk> journal);
  absl::Status OpenJournal(const ConfigureJob& configure);
  void OnJournalEnded();
  void OnGone(const JournalGone& gone);
  void OnWhole();
  void SayJournal();
  void ForgetJournal();
  // Its job keeps journals.
  bool HasRun() const { return !parts_.disk.job.empty() || parts_.host_disk != nullptr; }

  // Backups of this server, and of another one.
  void SendRecords(const BackupAt& at);
  void OnBackedUp(uint32_t engine);
  void SayLost(const std::string& why);
  void TakeOver(const syncline::TakeOver& take);
  void EndStandIn();

  ServerEngine* EngineOf(uint32_t block) const;

  Parts parts_;
  const std::string name_;
  std::vector<std::unique_ptr<ServerEngine>> engines_;
  ConnectionId connection_ = 0;
  std::optional<ServerIdentity> identity_;
  uint32_t job_ = 0;
  bool configured_ = false;
  std::optional<uint32_t> building_;  // a job whose shards are not there yet
  JobMemory memory_;                  // of the job
  // Engines that have still to answer the coordinator's last word.
  std::set<uint32_t> preparing_;
  uint64_t prepared_epoch_ = 0;
  uint64_t next_step_ = 0;
  std::set<uint32_t> committing_;
  uint64_t committed_epoch_ = 0;
  std::set<uint32_t> backing_up_;
  uint64_t backup_key_ = 0;
  bool takes_records_ = false;  // it is a stand-in that holds a backup
  bool says_loss_ = true;
  std::set<uint32_t> without_journal_;  // engines: it has ended, or is not whole again
  uint32_t first_shard_ = 0;
  std::shared_ptr<JournalDisk> journal_;            // of the place
  std::vector<std::shared_ptr<JournalDisk>> used_;  // engines may still point to them
  std::optional<uint32_t> later_journal_;           // that begins with the next commit
  std::optional<uint32_t> allowed_journal_;         // that may begin when there is room
  bool journal_lost_ = false;                       // was said, and not answered
  uint32_t whole_generation_ = 0;                   // was said
  std::set<uint32_t> begins_journal_;               // engines
  std::mt19937_64 random_;
  const uint64_t session_key_;  // that the coordinator would draw for a stand-in
  // Events outlive a killed process; they look here first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace syncline::sim
