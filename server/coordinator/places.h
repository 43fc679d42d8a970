// The servers that hold a job's shards. A place is the part of the job's placement that
// one server holds. The blocks and shards of a place never change, but another server may
// take over the place (job_servers.cc). Shards are numbered across all places.
//
//   places.Begin({a, b}, placement, trained_blocks);  // with one shard each
//   places.FirstShard(1);                             // 1
//   places.Move(1, c, std::nullopt);                  // workers are not told yet
//
// Thread safety: none.
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
  // REQUIRES: `placement` was made for `servers`, in this order.
  void Begin(std::vector<JobServer> servers,
             std::shared_ptr<const JobPlacement> placement, const TrainedBlocks& trained);
  // The job is over: frees everything large, and keeps the list of servers.
  void Release();

  bool empty() const { return servers_.empty(); }
  size_t size() const { return servers_.size(); }
  const JobServer& operator[](size_t place) const { return servers_[place]; }
  auto begin() const { return servers_.begin(); }
  auto end() const { return servers_.end(); }
  // The place of this server.
  std::optional<size_t> Of(uint32_t server) const;

  // ---- What the places hold ----

  // Null before the job begins, and once it is over.
  const std::shared_ptr<const JobPlacement>& placement() const { return placement_; }
  // Addresses of all shards, in order. Null before the job begins, and once it is over.
  const std::shared_ptr<const std::vector<std::string>>& addresses() const {
    return addresses_;
  }
  uint32_t FirstShard(size_t place) const;
  uint32_t shards() const { return FirstShard(servers_.size()); }
  // The place's shards that have blocks; the others keep no journal and no checkpoint.
  std::set<uint32_t> ShardsOf(size_t place) const;
  std::set<uint32_t> BlocksOf(size_t place) const;
  // The shards of all places that have trained blocks.
  const std::set<uint32_t>& training_shards() const { return training_shards_; }
  bool Trains(size_t place) const;

  // ---- Which server has a place ----

  // Its server has returned to a restarted coordinator, with another connection.
  void Return(size_t place, const JobServer& back);
  // Gives the place to `successor` from `epoch` on. Empty: from the next epoch on.
  void Move(size_t place, JobServer successor, std::optional<uint64_t> epoch);
  // Whether a move waits for the next epoch, to tell workers of it.
  bool HasUntoldMoves() const;
  // Moves that wait take effect with this epoch.
  void BeginEpoch(uint64_t epoch);
  // Shards that have moved since the job began, for EpochChanged.
  std::vector<MovedShard> Moved() const;

  // ---- Memory of servers ----

  // Bytes that the place takes, as planned last; 0 once the job is over.
  uint64_t BytesOf(size_t place) const { return bytes_.empty() ? 0 : bytes_[place]; }
  // Repeats a change of the plan that was made before the coordinator was restarted.
  void Plan(const StalenessChange& change);
  // Plans the memory for another staleness, if all servers have it. Memory is never given
  // back. FailedPrecondition and ResourceExhausted change nothing.
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
