#include "tests/sim/job_modes.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "comm/base/check.h"

namespace syncline::sim {
namespace {

// Fits the settings to mode asp. Each update has one contribution, so steps cannot
// accumulate. State is in FP32, because the reference stores the state of whole tensors.
void FitToArrival(std::mt19937_64& random, TrainingSettings& training) {
  OptionValues& options = training.mode.values;
  if (OneIn(random, 2)) options["age_power"] = 1;
  if (OneIn(random, 3)) options["age_decay"] = 0.5;
  if (OneIn(random, 3)) options["compensation"] = 2;
  if (OneIn(random, 4)) options["age_limit"] = 5;
  training.optimizer.state = "f32";
  training.accumulate_steps = 1;
  std::erase_if(training.gradient,
                [](const auto& option) { return option.first != "clip_value"; });
}

// Replaces settings that the mode does not support.
JobSpec MadeValid(JobSpec job) {
  if (!ValidateJob(job).ok()) job.settings.push_codec = "bf16";
  if (!ValidateJob(job).ok()) {
    job.training.optimizer = {.name = "adamw", .options = {{"lr", 0.01}}};
  }
  SYNCLINE_CHECK(ValidateJob(job).ok());
  return job;
}

// Returns the quorum; 0: none, a random one, or one of all workers.
uint64_t QuorumOf(std::string_view mode) {
  if (!mode.starts_with("bsp:")) return 0;
  const SyncMode parsed = *ParseSyncMode(*ParseNamedOptions(mode));
  return parsed.is_whole ? 0 : parsed.quorum;
}

}  // namespace

bool IsMode(std::string_view mode) {
  static constexpr std::array<std::string_view, 4> kModes = {"bsp", "ssp", "asp",
                                                             "quorum"};
  if (std::ranges::count(kModes, mode) > 0) return true;
  const auto given = ParseNamedOptions(mode);
  const auto parsed = given.ok() ? ParseSyncMode(*given) : given.status();
  return parsed.ok() && parsed->has_quorum();
}

// Backups need another server, and a quorum needs enough workers.
RunSize FitToMode(std::string_view mode, Restarts restarts, RunSize size) {
  const bool has_backups =
      restarts == Restarts::kBackups || restarts == Restarts::kTogether;
  if (has_backups && size.engines.size() < 2) size.engines.push_back(1);
  const auto quorum = static_cast<uint32_t>(QuorumOf(mode));
  size.workers = std::max(size.workers, quorum);
  return size;
}

JobSpec FitToMode(std::string_view mode, std::mt19937_64& random, JobSpec job) {
  if (mode == "bsp") return job;
  TrainingSettings& training = job.training;
  training.aggregation = Aggregation::kRankOrder;
  static constexpr std::array<const char*, 4> kDense = {"fp32", "bf16", "fp16",
                                                        "bf16-stochastic"};
  job.settings.publish_codec = kDense[random() % kDense.size()];
  if (mode == "quorum") {
    static constexpr std::array<double, 4> kGraces = {0, 3, 30, 400};
    training.mode = {
        .name = "bsp",
        .values = {{"quorum", static_cast<double>(1 + random() % job.workers)},
                   {"grace_ms", kGraces[random() % kGraces.size()]}}};
    return MadeValid(std::move(job));
  }
  if (mode.starts_with("bsp:")) {
    training.mode = *ParseNamedOptions(mode);
    return MadeValid(std::move(job));
  }
  training.mode.name = std::string(mode);
  training.loss_scaling = {};
  if (mode == "ssp") {
    training.mode.values["staleness"] = std::uniform_int_distribution<int>(0, 4)(random);
  } else {
    FitToArrival(random, training);
  }
  return MadeValid(std::move(job));
}

bool OutlivesAll(Restarts restarts) {
  return restarts == Restarts::kBackups || restarts == Restarts::kTogether;
}

bool ServersDie(Restarts restarts) {
  return OutlivesAll(restarts) || restarts == Restarts::kServers ||
         restarts == Restarts::kBoth;
}

JobSpec MadeDurable(JobSpec job, Restarts restarts) {
  if (ServersDie(restarts)) {
    job.settings.durability = restarts == Restarts::kBackups    ? "peer"
                              : restarts == Restarts::kTogether ? "disk+peer"
                                                                : "disk";
    uint64_t& elements = job.tensors[0].shape[0];
    if (job.HasBackups()) elements = std::min<uint64_t>(elements, kTileElements + 17);
  }
  return job;
}

UpdateJob RandomUpdate(Random& random, const JobSpec& job, uint64_t steps) {
  UpdateJob update = {.job = job.name};
  update.optimizer["lr"] = Between(random, 0.002, 0.02);
  if (OneIn(random, 2)) {
    update.schedule = {.name = "linear",
                       .values = {{"total_steps", static_cast<double>(steps)}}};
  }
  return update;
}

UpdateJob RandomStaleness(Random& random, const JobSpec& job) {
  static constexpr std::array<const char*, 6> kModes = {"bsp",   "ssp:0", "ssp:1",
                                                        "ssp:2", "ssp:4", "ssp:9"};
  UpdateJob update = {.job = job.name};
  update.mode = *ParseModeText(kModes[random() % kModes.size()]);
  return update;
}

}  // namespace syncline::sim
