#include "server/coordinator/places.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline {

void Places::Begin(std::vector<JobServer> servers,
                   std::shared_ptr<const JobPlacement> placement,
                   const TrainedBlocks& trained) {
  servers_ = std::move(servers);
  placement_ = std::move(placement);
  for (size_t place = 0; place < servers_.size(); ++place) {
    bytes_.push_back(placement_->server_use[place].total());
  }
  const std::vector<uint32_t>& shard_of_block = placement_->shard_of_block;
  for (uint32_t block = 0; block < shard_of_block.size(); ++block) {
    if (trained.contains(block)) training_shards_.insert(shard_of_block[block]);
  }
  ListAddresses();
}

void Places::Release() {
  placement_.reset();
  addresses_.reset();
  bytes_.clear();
}

std::optional<size_t> Places::Of(uint32_t server) const {
  const auto found = std::ranges::find(servers_, server, &JobServer::server);
  if (found == servers_.end()) return std::nullopt;
  return static_cast<size_t>(found - servers_.begin());
}

// ---- What lies there ----

void Places::ListAddresses() {
  auto addresses = std::make_shared<std::vector<std::string>>();
  for (const JobServer& server : servers_) {
    addresses->insert(addresses->end(), server.shard_addresses.begin(),
                      server.shard_addresses.end());
  }
  addresses_ = std::move(addresses);
}

uint32_t Places::FirstShard(size_t place) const {
  uint32_t first = 0;
  for (size_t i = 0; i < place; ++i) {
    first += static_cast<uint32_t>(servers_[i].shard_addresses.size());
  }
  return first;
}

std::set<uint32_t> Places::ShardsOf(size_t place) const {
  const uint32_t first = FirstShard(place);
  const uint32_t end = FirstShard(place + 1);
  std::set<uint32_t> shards;
  for (const uint32_t shard : placement_->shard_of_block) {
    if (shard >= first && shard < end) shards.insert(shard);
  }
  return shards;
}

std::set<uint32_t> Places::BlocksOf(size_t place) const {
  const uint32_t first = FirstShard(place);
  const uint32_t end = FirstShard(place + 1);
  std::set<uint32_t> blocks;
  for (uint32_t block = 0; block < placement_->shard_of_block.size(); ++block) {
    const uint32_t shard = placement_->shard_of_block[block];
    if (shard >= first && shard < end) blocks.insert(block);
  }
  return blocks;
}

bool Places::Trains(size_t place) const {
  const auto trained = training_shards_.lower_bound(FirstShard(place));
  return trained != training_shards_.end() && *trained < FirstShard(place + 1);
}

// ---- Who has them ----

void Places::Return(size_t place, const JobServer& back) {
  servers_[place].connection = back.connection;
  servers_[place].feeds_two_backups = back.feeds_two_backups;
}

void Places::Move(size_t place, JobServer successor, std::optional<uint64_t> epoch) {
  servers_[place] = std::move(successor);
  servers_[place].moved_in = epoch.value_or(kUntold);
  ListAddresses();
}

bool Places::HasUntoldMoves() const {
  return std::ranges::any_of(
      servers_, [](const JobServer& server) { return server.moved_in == kUntold; });
}

void Places::BeginEpoch(uint64_t epoch) {
  for (JobServer& server : servers_) {
    if (server.moved_in == kUntold) server.moved_in = epoch;
  }
}

std::vector<MovedShard> Places::Moved() const {
  std::vector<MovedShard> moved;
  uint32_t shard = 0;
  for (const JobServer& server : servers_) {
    for (const std::string& address : server.shard_addresses) {
      if (server.moved_in > 0 && server.moved_in != kUntold) {
        moved.push_back({.shard = shard,
                         .epoch = server.moved_in,
                         .address = address,
                         .server = {server.server, server.incarnation}});
      }
      ++shard;
    }
  }
  return moved;
}

// ---- What it takes of servers' memory ----

void Places::Plan(const StalenessChange& change) {
  for (size_t place = 0; place < servers_.size(); ++place) {
    bytes_[place] = UseAfter(placement_->server_use[place], change).total();
  }
}

absl::Status Places::PlanIfItFits(const std::string& job, const StalenessChange& change,
                                  const ServerMemories& memory) {
  std::vector<uint64_t> bytes = bytes_;
  for (size_t place = 0; place < servers_.size(); ++place) {
    const JobServer& server = servers_[place];
    const MemoryUse use = UseAfter(placement_->server_use[place], change);
    uint64_t& placed = bytes[place];
    if (use.total() <= placed) continue;
    const auto found = memory.find(server.server);
    if (found == memory.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          NameOf(server),
          " is not attached, so it is not known whether a larger staleness fits its "
          "memory; try again when 'syncline status' shows the server"));
    }
    ServerMemory free = found->second;
    free.placed_bytes -= std::min(free.placed_bytes, placed);
    const absl::Status fits = CheckMemory(job, use, free);
    if (!fits.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("staleness ", change.staleness,
                       " needs too much memory, a smaller one may fit: ",
                       std::string(fits.message())));
    }
    placed = use.total();
  }
  bytes_ = std::move(bytes);
  return absl::OkStatus();
}

}  // namespace syncline
