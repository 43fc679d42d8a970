#include "cli/plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/human_bytes.h"
#include "cli/plan_file.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "nlohmann/json.hpp"
#include "server/coordinator/placement.h"

namespace syncline {
namespace {

constexpr size_t kShownTensors = 20;

using Json = nlohmann::ordered_json;

struct PlanOptions {
  std::string file = {};
  double params = 0;
  // If not empty, these replace the optimizer and the state of the file.
  std::string optimizer = {};
  std::string state = {};
  uint32_t workers = 0;
  ClusterSize cluster = {};
  bool json = false;
};

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// ---- Input ----

absl::StatusOr<JobSpec> OneTensor(double params) {
  if (!(params >= 1 && params <= double{kMaxTensorElements})) {
    return Usage(absl::StrCat("--params is ", params, ", but must be in [1, ",
                              kMaxTensorElements, "]"));
  }
  return JobSpec{.name = "default",
                 .tensors = {{.name = "parameters",
                              .shape = {static_cast<uint64_t>(std::round(params))}}}};
}

absl::StatusOr<JobSpec> SpecOf(const PlanOptions& options) {
  if (options.file.empty() == (options.params == 0)) {
    return Usage("give either a job file or --params; see syncline plan memory --help");
  }
  SYNCLINE_ASSIGN_OR_RETURN(JobSpec spec, options.file.empty()
                                              ? OneTensor(options.params)
                                              : ReadJobFile(options.file));
  OptimizerSettings& optimizer = spec.training.optimizer;
  if (!options.optimizer.empty()) {
    optimizer = {.name = options.optimizer, .state = optimizer.state};
  }
  if (!options.state.empty()) optimizer.state = options.state;
  if (options.workers != 0) spec.workers = options.workers;
  return spec;
}

absl::StatusOr<int> ShowMemory(const PlanOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const JobSpec spec, SpecOf(options));
  SYNCLINE_ASSIGN_OR_RETURN(const PlannedMemory memory,
                            PlanJobMemory(spec, options.cluster));
  std::cout << (options.json ? MemoryAsJson(memory) + "\n" : MemoryAsTable(memory));
  return kExitDone;
}

// ---- Tables ----

std::string Human(uint64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

std::string Head(const char* what) {
  return absl::StrFormat("%-24s %12s %9s %9s %9s %11s %9s %9s %9s %9s\n", what,
                         "ELEMENTS", "MASTER", "VIEW", "STATE", "ACCUMULATOR", "FACTORS",
                         "PUBLISHED", "HELD", "TOTAL");
}

std::string Row(const std::string& name, const MemoryUse& use) {
  return absl::StrFormat(
      "%-24s %12d %9s %9s %9s %11s %9s %9s %9s %9s\n", name, use.elements,
      Human(use.master), Human(use.view), Human(use.all_state()), Human(use.accumulator),
      Human(use.factors), Human(use.published), Human(use.held), Human(use.total()));
}

std::string TensorTable(const PlannedMemory& memory) {
  const std::vector<MemoryUse>& tensors = memory.plan.tensors;
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](size_t i) { return tensors[i].total(); });
  std::string table = Head("TENSOR");
  MemoryUse others;
  for (size_t i = 0; i < order.size(); ++i) {
    const MemoryUse& use = tensors[order[i]];
    if (i >= kShownTensors) {
      others += use;
    } else {
      table += Row(memory.spec.tensors[order[i]].name, use);
    }
  }
  if (order.size() <= kShownTensors) return table;
  return table + Row(absl::StrCat(order.size() - kShownTensors, " others"), others);
}

std::string Slots(const MemoryUse& use) {
  return absl::StrJoin(use.state, ", ", [](std::string* out, const auto& slot) {
    absl::StrAppend(out, slot.first, " ", Human(slot.second));
  });
}

// ---- JSON ----

Json AsJson(const MemoryUse& use) {
  return {{"elements", use.elements},
          {"master", use.master},
          {"view", use.view},
          {"state", use.state},
          {"accumulator", use.accumulator},
          {"factors", use.factors},
          {"published", use.published},
          {"held", use.held},
          {"resident", use.resident()},
          {"total", use.total()}};
}

}  // namespace

MemoryUse PlannedMemory::Server(uint32_t server) const {
  MemoryUse use;
  for (uint32_t thread = 0; thread < cluster.threads; ++thread) {
    use += plan.shards[server * cluster.threads + thread];
  }
  return use;
}

absl::StatusOr<PlannedMemory> PlanJobMemory(const JobSpec& spec,
                                            const ClusterSize& cluster) {
  if (cluster.servers < 1 || cluster.servers > kMaxServers || cluster.threads < 1 ||
      cluster.threads > kMaxEngineThreads) {
    return Usage(absl::StrCat("servers must be in [1, ", kMaxServers,
                              "] and threads in [1, ", kMaxEngineThreads, "]"));
  }
  SYNCLINE_RETURN_IF_ERROR(ValidateJob(spec));
  const std::vector<TrainedTensor> tensors = spec.Trained();
  SYNCLINE_ASSIGN_OR_RETURN(const auto training,
                            TrainingPlan::Create(spec.training, tensors));
  const std::vector<BlockRange> blocks = spec.Blocks();
  const uint32_t shards = cluster.servers * cluster.threads;
  const std::vector<uint32_t> shard_of_block =
      PlaceBlocks(blocks, shards,
                  [&](uint32_t tensor) { return training->NeedsWholeTensor(tensor); });
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<TensorTransfers> transfers,
                            spec.Transfers());
  PlannedMemory memory = {.spec = spec, .cluster = cluster};
  SYNCLINE_ASSIGN_OR_RETURN(
      memory.plan,
      PlanMemory({.training = spec.training,
                  .tensors = tensors,
                  .transfers = transfers,
                  .workers = spec.workers},
                 {.blocks = blocks, .shard_of_block = shard_of_block, .shards = shards}));
  return memory;
}

std::string MemoryAsTable(const PlannedMemory& memory) {
  const JobSpec& spec = memory.spec;
  std::string text = absl::StrFormat(
      "job %s: %s, %s state, pushes %s, publishes %s, workers %d, servers %d, threads "
      "%d\n\n",
      spec.name, spec.training.optimizer.name, spec.training.optimizer.state,
      spec.settings.push_codec, spec.settings.publish_codec, spec.workers,
      memory.cluster.servers, memory.cluster.threads);
  absl::StrAppend(&text, TensorTable(memory), "\n", Head("SERVER"));
  for (uint32_t server = 0; server < memory.cluster.servers; ++server) {
    text += Row(absl::StrCat(server), memory.Server(server));
  }
  const MemoryUse& job = memory.plan.job;
  absl::StrAppend(&text, Row("all", job), "\n");
  if (!job.state.empty()) absl::StrAppend(&text, "state: ", Slots(job), "\n");
  absl::StrAppend(&text, "between steps: ", Human(job.resident()), "\n");
  return text;
}

std::string MemoryAsJson(const PlannedMemory& memory) {
  Json tensors = Json::array();
  for (size_t i = 0; i < memory.spec.tensors.size(); ++i) {
    Json tensor = {{"name", memory.spec.tensors[i].name}};
    tensor.update(AsJson(memory.plan.tensors[i]));
    tensors.push_back(std::move(tensor));
  }
  Json servers = Json::array();
  for (uint32_t number = 0; number < memory.cluster.servers; ++number) {
    Json server = {{"server", number}};
    server.update(AsJson(memory.Server(number)));
    Json& shards = server["shards"] = Json::array();
    for (uint32_t thread = 0; thread < memory.cluster.threads; ++thread) {
      shards.push_back(
          AsJson(memory.plan.shards[number * memory.cluster.threads + thread]));
    }
    servers.push_back(std::move(server));
  }
  Json json = {{"name", memory.spec.name}, {"workers", memory.spec.workers}};
  json["job"] = AsJson(memory.plan.job);
  json["servers"] = std::move(servers);
  json["tensors"] = std::move(tensors);
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

void AddPlan(CLI::App& app, Command* selected) {
  CLI::App* plan = app.add_subcommand("plan", "Show what a job would need");
  plan->require_subcommand(1);
  auto options = std::make_shared<PlanOptions>();
  CLI::App* memory = plan->add_subcommand("memory", "Memory of a job on its servers");
  memory->add_option("file", options->file, "Job as YAML (see cli/README.md)");
  memory->add_option("--params", options->params,
                     "Without a job file: elements of one tensor, such as 7e9");
  memory->add_option("--optimizer", options->optimizer,
                     "Optimizer instead of the file's, with default options");
  memory->add_option("--state", options->state, "f32, bf16 or int8 optimizer state");
  memory->add_option("--workers", options->workers,
                     "Number of workers instead of the file's");
  memory->add_option("--servers", options->cluster.servers, "Servers")
      ->capture_default_str();
  memory
      ->add_option("--threads", options->cluster.threads, "Engine threads of each server")
      ->capture_default_str();
  memory->add_flag("--json", options->json, "Print JSON with all sizes, in bytes");
  memory->callback([=] { *selected = [options] { return ShowMemory(*options); }; });
}

}  // namespace syncline
