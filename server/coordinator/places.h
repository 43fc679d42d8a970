// On which servers a job lies. A place is the part of its placement that one server has: its
// blocks and shards stay the same, while another server may take the place of one that died
// (job_servers.cc). Shards are counted over all places.
//
//   places.Begin({a, b}, placement, trained_blocks);  // of one shard each
//   places.FirstShard(1);                             // 1
//   places.Move(1, c, std::nullopt);                  // workers are still to hear of it
//
// Thread safety: none; pure, but for what it remembers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/admission.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/decision.h"
#include "server/coordinator/job_context.h"
#include "server/coordinator/mode_change.h"

namespace syncline {

class Places {
 public:
  // REQUIRES: `placement` is that on `servers`, in their order.
  void Begin(std::vector<JobServer> servers,
             std::shared_ptr<const JobPlacement> placement, const TrainedBlocks& trained);
  // The job is over: which servers it had is still known, and nothing that is large.
  void Release();

  bool empty() const { return servers_.empty(); }
  size_t size() const { return servers_.size(); }
  const JobServer& operator[](size_t place) const { return servers_[place]; }
  auto begin() const { return servers_.begin(); }
  auto end() const { return servers_.end(); }
  // That this server has.
  std::optional<size_t> Of(uint32_t server) const;

  // ---- What lies there ----

  // Null before it began, and once it is over; likewise the addresses.
  const std::shared_ptr<const JobPlacement>& placement() const { return placement_; }
  // Of all shards, in their order.
  const std::shared_ptr<const std::vector<std::string>>& addresses() const {
    return addresses_;
  }
  uint32_t FirstShard(size_t place) const;
  uint32_t shards() const { return FirstShard(servers_.size()); }
  // Those that have blocks: the others write nothing.
  std::set<uint32_t> ShardsOf(size_t place) const;
  std::set<uint32_t> BlocksOf(size_t place) const;
  // Those of all places that have blocks to train.
  const std::set<uint32_t>& training_shards() const { return training_shards_; }
  bool Trains(size_t place) const;

  // ---- Who has them ----

  void SetConnection(size_t place, ConnectionId connection);
  // The successor has it from that epoch on; none: from the next one that is begun.
  void Move(size_t place, JobServer successor, std::optional<uint64_t> epoch);
  // Some wait for an epoch to begin.
  bool HasUntoldMoves() const;
  // Which is this one.
  void BeginEpoch(uint64_t epoch);
  // Shards that are not where the job began, of which workers hear with an epoch.
  std::vector<MovedShard> Moved() const;

  // ---- What it takes of servers' memory ----

  // As planned last; none once the job is over.
  uint64_t BytesOf(size_t place) const { return bytes_.empty() ? 0 : bytes_[place]; }
  // It was planned anew by an earlier life of the coordinator.
  void Plan(const StalenessChange& change);
  // Takes what it takes with that staleness, if all have it; of less it keeps what it has.
  // FailedPrecondition or ResourceExhausted, which change nothing.
  absl::Status PlanIfItFits(const std::string& job, const StalenessChange& change,
                            const ServerMemories& memory);

 private:
  static constexpr uint64_t kUntold = ~uint64_t{0};  // JobServer::moved_in

  void ListAddresses();

  std::vector<JobServer> servers_;  // by place
  std::shared_ptr<const JobPlacement> placement_;
  std::shared_ptr<const std::vector<std::string>> addresses_;
  std::set<uint32_t> training_shards_;
  std::vector<uint64_t> bytes_;  // by place
};

}  // namespace syncline
