// A server of the simulation: the real shard and the real links to workers behind an
// in-process transport and a simulated control stream. One engine, one job.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/codec.h"
#include "comm/transport/inproc/inproc.h"
#include "server/coordinator/held_job.h"
#include "server/links/record_link.h"
#include "server/links/worker_link.h"
#include "server/shard/record.h"
#include "server/shard/shard.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/reference.h"
#include "tests/sim/simulation.h"
#include "tests/sim/traffic.h"

namespace syncline::sim {

// A server's disk, which outlives its process. What was not synced when that died may be lost.
struct Disk {
  std::string job = {};  // whose records they are; empty: none
  uint32_t shard = 0;
  std::vector<std::shared_ptr<const ShardRecord>> records = {};
  size_t synced = 0;  // of them
};

class ServerProcess : private Receiver {
 public:
  struct Parts {
    EventQueue& events;
    InprocNetwork& network;
    ControlPlane& control;
    Reference& reference;
    Traffic& traffic;
    const CodecRegistry& codecs;
    absl::Duration heartbeat_interval;
    Disk& disk;
    uint64_t seed = 0;  // how long its disk takes, and building
    // A block is back from the disk, at that version.
    std::function<void(uint32_t block, uint64_t version)> on_restored = [](uint32_t,
                                                                           uint64_t) {};
    // It is to start a stand-in.
    std::function<void(const HoldBackup&)> on_hold = [](const HoldBackup&) {};
    std::optional<StandInFor> stand_in = std::nullopt;  // it is one
    Fault fault = Fault::kNone;
  };

  ServerProcess(Parts parts, std::string name);

  // kill -9, and perhaps the power: of what was not synced a random part is left.
  void Kill();

  bool Owns(uint32_t block) const { return owned_.contains(block); }
  bool Is(uint32_t server) const { return identity_ && identity_->server == server; }
  // As when the coordinator has said so. A planted fault when it has not.
  void GoOnWithoutBackup();
  bool is_configured() const { return shard_ != nullptr && !pair_; }
  const Shard& shard() const { return *shard_; }
  std::string address() const { return transport_->address(); }
  // Replays all that the shard has recorded: block by block, version by version, and at the
  // end, it must be what the shard was.
  absl::Status CheckRecords();

 private:
  void Attach();
  void OnLost();
  void After(absl::Duration delay, std::function<void()> fn);
  void Keep(std::shared_ptr<const ShardRecord> record);
  void SyncSoon();
  absl::StatusOr<uint64_t> Restore();

  // Backups (server_process_backup.cc): of this server, and of another one.
  void OnBackup(const CoordinatorBody& body);
  void SendRecords(const BackupAt& at);
  void OnBackedUp(const ShardBackedUp& backed_up);
  void OfBackup(const MessageHeader& header, const Buffer& payload);
  void TakeRecord(const MessageHeader& header, const Buffer& payload);
  void SayLost(const std::string& why);
  void TakeOverFromBackup();
  void EndStandIn();

  ServerHello MakeHello() const;
  void OnControl(const CoordinatorBody& body);
  void BuildSoon(const ConfigureJob& configure);
  void Configure(const ConfigureJob& configure);
  void Run(const ShardInput& input);
  void Perform(const ShardOutput& output);
  absl::Status Compare(const Shard& replayed) const;
  using WorkerLife = std::pair<uint32_t, uint32_t>;  // rank, incarnation

  void Reply(const ShardReply& reply);
  void TakeHello(const MessageHeader& header, const Buffer& payload);
  void TakeQuestion(const MessageHeader& header);
  void Forget(WorkerLife life, uint64_t connection);
  void Pump(WorkerLife life);
  void PumpAll();
  void Beat();
  JobProgress Progress();

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;

  Parts parts_;
  const std::string name_;
  BufferPool pool_;
  std::unique_ptr<Transport> transport_;
  std::map<WorkerLife, std::unique_ptr<WorkerLink>> workers_;
  uint64_t next_connection_ = 1;
  ConnectionId connection_ = 0;
  std::optional<ServerIdentity> identity_;
  uint32_t job_ = 0;
  std::optional<uint32_t> building_;  // a job whose shard is not there yet
  JobMemory memory_;                  // of the job
  std::shared_ptr<Shard> shard_;
  ShardOptions options_;
  std::vector<ShardBlock> blocks_;
  std::mt19937_64 random_;
  const uint64_t session_key_;  // that the coordinator would draw for a stand-in
  size_t begun_at_ = 0;  // of the disk's records: those before are of another process
  bool syncs_ = false;
  std::unique_ptr<RecordSender> records_;  // to its backup; null: it has none any more
  std::optional<BackupPair> pair_;         // of a stand-in that holds a backup: from whom
  RecordReceiver receiver_;                // likewise
  std::unique_ptr<Endpoint> answers_;      // likewise
  bool says_loss_ = true;
  bool has_all_records_ = true;  // its disk, of what the shard is
  // Events outlive a killed process; they look here first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::set<uint32_t> owned_;
  uint64_t bytes_ = 0;
};

}  // namespace syncline::sim
