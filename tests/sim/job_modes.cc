#include "tests/sim/job_modes.h"

#include <algorithm>
#include <array>
#include <string>

namespace syncline::sim {
namespace {

bool OneIn(std::mt19937_64& random, int n) {
  return std::uniform_int_distribution<int>(1, n)(random) == 1;
}

// One contribution is all that an update sees. The reference stores state of whole tensors.
void FitToArrival(std::mt19937_64& random, TrainingSettings& training) {
  OptionValues& options = training.mode.values;
  if (OneIn(random, 2)) options["age_power"] = 1;
  if (OneIn(random, 3)) options["age_decay"] = 0.5;
  if (OneIn(random, 3)) options["compensation"] = 2;
  static constexpr std::array<std::string_view, 3> kElementwise = {"adamw", "sgd",
                                                                   "lion"};
  OptimizerSettings& optimizer = training.optimizer;
  if (std::ranges::count(kElementwise, optimizer.name) == 0) {
    optimizer = {.name = "adamw", .options = {{"lr", 0.01}}};
  }
  optimizer.state = "f32";
  training.accumulate_steps = 1;
  std::erase_if(training.gradient,
                [](const auto& option) { return option.first != "clip_value"; });
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

JobSpec FitToMode(std::string_view mode, std::mt19937_64& random, JobSpec job) {
  if (mode == "bsp") return job;
  TrainingSettings& training = job.training;
  training.aggregation = Aggregation::kRankOrder;
  job.publish_codec = OneIn(random, 2) ? "fp32" : "bf16";
  if (mode == "quorum") {
    static constexpr std::array<double, 4> kGraces = {0, 3, 30, 400};
    training.mode = {
        .name = "bsp",
        .values = {{"quorum", std::uniform_int_distribution<int>(1, 3)(random)},
                   {"grace_ms", kGraces[random() % kGraces.size()]}}};
    return job;
  }
  if (mode.starts_with("bsp:")) {
    training.mode = *ParseNamedOptions(mode);
    return job;
  }
  training.mode.name = std::string(mode);
  training.loss_scaling = {};
  if (mode == "ssp") {
    training.mode.values["staleness"] = std::uniform_int_distribution<int>(0, 4)(random);
  } else {
    FitToArrival(random, training);
  }
  return job;
}

}  // namespace syncline::sim
