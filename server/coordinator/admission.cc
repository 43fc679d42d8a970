#include "server/coordinator/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/byte_size.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/coordinator/placement.h"

namespace syncline {
namespace {

// "weights 4.0 GiB, optimizer state 8.0 GiB": what there is, the largest first.
std::string ByPurpose(const MemoryUse& use) {
  std::vector<std::pair<uint64_t, const char*>> parts = {
      {use.all_state() + use.factors, "optimizer state "},
      {use.master, "weights "},
      {use.held, "contributions "},
      {use.view, "view "},
      {use.accumulator, "accumulator "},
      {use.published, "published "}};
  std::ranges::stable_sort(parts, std::greater<>(),
                           [](const auto& part) { return part.first; });
  std::erase_if(parts, [](const auto& part) { return part.first == 0; });
  return absl::StrJoin(parts, ", ", [](std::string* out, const auto& part) {
    absl::StrAppend(out, part.second, FormatByteSize(part.first));
  });
}

}  // namespace

absl::Status CheckMemory(const std::string& job, const MemoryUse& use,
                         const ServerMemory& server) {
  if (server.budget_bytes == 0) return absl::OkStatus();
  const uint64_t free =
      server.budget_bytes - std::min(server.budget_bytes, server.placed_bytes);
  if (use.total() <= free) return absl::OkStatus();
  return WithFailure(
      absl::ResourceExhaustedError(absl::StrCat(
          "job '", job, "' needs ", FormatByteSize(use.total()), " on server ",
          server.name, " (", ByPurpose(use), "), but only ", FormatByteSize(free),
          " of its memory budget of ", FormatByteSize(server.budget_bytes), " are free: ",
          server.placed_bytes > 0 ? "wait for the end of another job, " : "",
          "use more servers, an optimizer with less state, state=bf16 or int8, or raise "
          "the budget with --memory; 'syncline plan memory' shows what needs how much")),
      Failure::kJobRefused);
}

absl::StatusOr<JobPlacement> PlaceJob(const JobSpec& spec,
                                      std::span<const uint32_t> shards) {
  SYNCLINE_CHECK(!shards.empty());
  const std::vector<TrainedTensor> tensors = spec.Trained();
  SYNCLINE_ASSIGN_OR_RETURN(const auto training,
                            TrainingPlan::Create(spec.training, tensors));
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<TensorTransfers> transfers,
                            spec.Transfers());
  const std::vector<BlockRange> blocks = spec.Blocks();
  uint32_t all_shards = 0;
  for (const uint32_t count : shards) all_shards += count;
  JobPlacement placement = {.shards = {shards.begin(), shards.end()}};
  placement.shard_of_block = PlaceBlocks(blocks, all_shards, [&](uint32_t tensor) {
    return training->NeedsWholeTensor(tensor);
  });
  SYNCLINE_ASSIGN_OR_RETURN(const MemoryPlan plan,
                            PlanMemory({.training = spec.training,
                                        .tensors = tensors,
                                        .transfers = transfers,
                                        .workers = spec.workers},
                                       {.blocks = blocks,
                                        .shard_of_block = placement.shard_of_block,
                                        .shards = all_shards}));
  std::vector<bool> has_blocks(all_shards);
  for (const uint32_t shard : placement.shard_of_block) has_blocks[shard] = true;
  uint32_t shard = 0;
  for (const uint32_t count : shards) {
    MemoryUse& use = placement.server_use.emplace_back();
    bool serves = false;
    for (uint32_t i = 0; i < count; ++i, ++shard) {
      use += plan.shards[shard];
      serves = serves || has_blocks[shard];
    }
    placement.serves.push_back(serves);
  }
  return placement;
}

absl::Status CheckPlacement(const std::string& job, const JobPlacement& placement,
                            std::span<const ServerMemory> servers) {
  SYNCLINE_CHECK(placement.server_use.size() == servers.size());
  for (size_t i = 0; i < servers.size(); ++i) {
    SYNCLINE_RETURN_IF_ERROR(CheckMemory(job, placement.server_use[i], servers[i]));
  }
  return absl::OkStatus();
}

}  // namespace syncline
