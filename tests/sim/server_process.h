// A server of the simulation: the real ServerMachine, with simulated engines, disk and
// control stream around it. It has one job at a time.
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
#include "server/machine/server_machine.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/reference.h"
#include "tests/sim/server_engine.h"
#include "tests/sim/simulation.h"
#include "tests/sim/traffic.h"

namespace syncline::sim {

// A server's disk, which outlives its process.
struct Disk {
  std::string job = {};  // the job of the records; empty: there are none
  uint32_t first_shard = 0;
  std::vector<ShardDisk> shards = {};  // one for each engine
};

// A journal of one place, for jobs that also have backups.
struct JournalDisk {
  uint32_t generation = 0;
  bool is_whole = false;
  std::vector<ShardDisk> shards = {};  // one for each engine of the place
};
// The disk of a host, which outlives all of the host's processes.
struct HostDisk {
  // Journals by the first shard of their place.
  std::map<uint32_t, std::vector<std::shared_ptr<JournalDisk>>> places = {};
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
    uint64_t seed = 0;  // of the times that its disk and Configure take
    // A block was restored from the disk, at this version.
    std::function<void(uint32_t block, uint64_t version)> on_restored = [](uint32_t,
                                                                           uint64_t) {};
    // The server must start a stand-in.
    std::function<void(const HoldBackup&)> on_hold = [](const HoldBackup&) {};
    // A stand-in is told to take over, and later that it has the place.
    std::function<void()> on_takes_over = [] {};
    std::function<void()> on_takes_place = [] {};
    // The journal begins a snapshot, or deleted what precedes one of this version.
    std::function<void()> on_snapshot = [] {};
    std::function<void(uint64_t version)> on_pruned = [](uint64_t) {};
    std::function<void()> on_lost_sync = [] {};         // the server must be killed
    std::optional<StandInFor> stand_in = std::nullopt;  // set: it is a stand-in
    Fault fault = Fault::kNone;
    HostDisk* host_disk = nullptr;  // the disk of journals beside backups
    std::string job = {};           // the job of these journals
  };

  ServerProcess(Parts parts, std::string name);

  // Kills the process, like kill -9 or a power failure: a random part of the unsynced
  // records survives.
  void Kill();

  bool Owns(uint32_t block) const { return EngineOf(block) != nullptr; }
  bool Is(uint32_t server) const {
    return machine_.identity() && machine_.identity()->server == server;
  }
  // Stops sending records to all backups: a planted fault.
  void GoOnWithoutBackup();
  // Another process has its place, and this one does not know it yet.
  void GiveUpPlace();
  bool is_configured() const {
    return configured_ && !takes_records_ && !takes_over_ && !has_given_up_;
  }
  // Returns the first shard of the place that it serves or is about to take.
  uint32_t first_shard() const { return first_shard_; }
  bool Holds(uint32_t first_shard) const {
    return takes_records_ && first_shard_ == first_shard;
  }
  bool HasJournal() const;
  // Starts a journal again if that is allowed and the disk has room.
  void TryJournal();
  // Whether a restart would restore the job, with all that workers have seen of it.
  bool HasSynced() const;
  // The disk fails for all engines. Later it works again, and the journals start again.
  void EndJournal();
  void BeginJournalAnew();
  // Makes the next sync of each engine fail.
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
  void Tell(std::optional<MemberBody> said);

  // The machine's outputs.
  void PerformAll(const ServerOutputs& outputs);
  void Perform(const Say& say);
  void Perform(const BuildShards& build);
  void Perform(const FinishBackup& finish);
  void Perform(const DropShards& drop);
  void Perform(const DropAllShards& drop);
  void Perform(const ToShards& input);
  void Perform(const SendRecords& records);
  void Perform(const StopRecords& records);
  void Perform(const LoseJournal& journal);
  void Perform(const AllowJournal& journal);
  void Perform(const BeginJournal& journal);
  void Perform(const StartStandIn& stand_in);
  void Perform(const EndNode& end);
  void Perform(const Misdirected& message);
  void Perform(const Attached& /*attached*/) {}
  void Perform(const AdmitMembers& /*members*/) {}  // connections have no keys
  void Perform(const BeginLastCut& /*cut*/) {}      // there are no checkpoints
  void Perform(const EndProcess& /*end*/) {}        // no operator ends a server

  void Configure(uint64_t order, const ConfigureJob& configure);
  absl::StatusOr<uint64_t> Build(const ConfigureJob& configure);
  void ForgetJob();
  void RunAll(const ShardInput& input);
  void OnOutput(uint32_t engine, const ShardOutput& output);
  std::set<uint32_t> AllEngines() const;
  bool Has(uint32_t job) const { return configured_ && job_ == job; }

  // ---- Journals beside backups (server_process_journal.cc) ----
  void ListJournals(ServerHello& hello) const;
  void UseJournal(std::shared_ptr<JournalDisk> journal);
  absl::Status OpenJournal(const ConfigureJob& configure);
  void AllowNext(uint32_t generation);
  void OnJournalEnded();
  void OnWhole();
  void ForgetJournal();
  // Whether its job has journals.
  bool HasRun() const { return !parts_.disk.job.empty() || parts_.host_disk != nullptr; }

  void TakePlaceIfTold(const CoordinatorBody& body);

  ServerEngine* EngineOf(uint32_t block) const;

  Parts parts_;
  const std::string name_;
  std::vector<std::unique_ptr<ServerEngine>> engines_;
  ConnectionId connection_ = 0;
  ServerMachine machine_;
  std::optional<ConfigureJob> ordered_;  // the job whose shards are to be built
  uint32_t job_ = 0;
  bool configured_ = false;              // the job's shards are there
  std::optional<BuildShards> building_;  // a job whose shards are not there yet
  bool takes_records_ = false;           // a stand-in that holds a backup
  bool takes_over_ = false;              // and has not heard yet that it has the place
  bool has_given_up_ = false;
  std::set<uint32_t> without_journal_;  // engines whose journals are not complete
  uint32_t first_shard_ = 0;
  std::shared_ptr<JournalDisk> journal_;            // the present one of the place
  std::vector<std::shared_ptr<JournalDisk>> used_;  // engines may still point to them
  std::optional<uint32_t> allowed_journal_;         // generation that may begin
  uint64_t journal_endings_ = 0;                    // how often it has ended
  std::set<uint32_t> begins_journal_;               // engines that have not completed it
  std::mt19937_64 random_;
  const uint64_t session_key_;  // a stand-in reports it to the coordinator
  // False: the process was killed. Events outlive it, and check this first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace syncline::sim
