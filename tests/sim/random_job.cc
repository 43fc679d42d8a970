#include "tests/sim/random_job.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tests/sim/push_oracle.h"

namespace syncline::sim {

double Between(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

bool OneIn(Random& random, int n) {
  return std::uniform_int_distribution<int>(1, n)(random) == 1;
}

namespace {

bool Takes(Random& random, const OptionSpec& spec) {
  // The default of these would leave out all tensors of a simulated size.
  if (spec.name == "min_elements" || spec.name == "vectors") return true;
  return OneIn(random, 6);
}

// Returns a value in range, near the default if there is one.
double RandomValue(Random& random, const OptionSpec& spec) {
  if (spec.name == "min_elements") return OneIn(random, 2) ? 0 : 100;
  if (spec.kind == OptionKind::kFlag) return OneIn(random, 4) ? 0 : 1;
  if (spec.kind == OptionKind::kWhole) {
    return std::min(spec.most, spec.least + static_cast<double>(random() % 7));
  }
  const double value =
      spec.standard > 0 ? spec.standard * Between(random, 0.5, 1) : Between(random, 0, 1);
  return std::clamp(value, spec.least, spec.most);
}

OptionValues RandomOptions(Random& random, std::span<const OptionSpec> specs) {
  OptionValues values;
  for (const OptionSpec& spec : specs) {
    if (Takes(random, spec)) values[std::string(spec.name)] = RandomValue(random, spec);
  }
  return values;
}

// Draws until the result is allowed. After too many tries returns `otherwise`, which is
// always allowed.
template <typename Draw, typename MayBe>
auto DrawUntil(const Draw& draw, const MayBe& may_be, decltype(draw()) otherwise) {
  for (int tries = 0; tries < 12; ++tries) {
    auto drawn = draw();
    if (may_be(drawn)) return drawn;
  }
  return otherwise;
}

bool IsValid(const TrainingSettings& training) {
  const std::vector<uint64_t> matrix = {12, 25};
  const std::vector<TrainedTensor> tensors = {{.shape = TensorShape(matrix)}};
  return TrainingPlan::Create(training, tensors).ok();
}

// Returns any optimizer of the registry. Its intervals are a few steps, so that they
// matter in a short run.
OptimizerSettings RandomOptimizer(Random& random) {
  const auto names = OptimizerNames();
  OptimizerSettings optimizer = {.name = std::string(names[random() % names.size()])};
  optimizer.options = RandomOptions(random, OptionsOf(optimizer.name));
  optimizer.options["lr"] = 0.01;
  for (const OptionSpec& spec : OptionsOf(optimizer.name)) {
    const bool is_interval =
        spec.name == "hessian_interval" || spec.name.ends_with("freeze_step");
    if (is_interval) optimizer.options[std::string(spec.name)] = 2;
  }
  if (OneIn(random, 4)) optimizer.state = OneIn(random, 2) ? "bf16" : "int8";
  return optimizer;
}

// Returns random settings of everything that a step consists of.
TrainingSettings RandomTraining(Random& random, uint64_t steps) {
  TrainingSettings training;
  training.optimizer = DrawUntil(
      [&] { return RandomOptimizer(random); },
      [](const OptimizerSettings& drawn) { return IsValid({.optimizer = drawn}); },
      {.name = "adamw", .options = {{"lr", 0.01}}});
  if (OneIn(random, 3)) training.gradient["clip_global_norm"] = 1.0;
  if (OneIn(random, 4)) {
    training.loss_scaling = {.name = "torch",
                             .values = {{"init_scale", 1024}, {"growth_interval", 2}}};
  }
  if (OneIn(random, 3)) {
    training.schedule = {.name = "cosine",
                         .values = {{"warmup_steps", 2},
                                    {"warmup_start_factor", 0.5},
                                    {"total_steps", static_cast<double>(steps)}}};
  }
  if (OneIn(random, 4)) training.accumulate_steps = OneIn(random, 2) ? 2 : 3;
  if (OneIn(random, 5)) training.aggregation = Aggregation::kArrival;
  TrainingSettings transformed = training;
  if (OneIn(random, 6)) transformed.gradient["clip_value"] = 0.5;
  if (OneIn(random, 6)) transformed.gradient["agc"] = 0.01;
  if (OneIn(random, 6)) transformed.gradient["centralize"] = 1;
  return IsValid(transformed) ? transformed : training;
}

// Returns any codec preset of the registry.
std::string RandomCodec(Random& random) {
  const std::vector<TransferPreset> presets = TransferPresets();
  const TransferPreset& preset = presets[random() % presets.size()];
  std::string text =
      FormatNamedOptions({.name = std::string(preset.name),
                          .values = RandomOptions(random, preset.options)});
  const auto add = [&](std::string_view option) {
    absl::StrAppend(&text, text.find(':') == std::string::npos ? ":" : ",",
                    std::string(option));
  };
  // The table of options has numbers only, so options with words are added here.
  constexpr std::array<std::string_view, 3> kMemories = {"memory=none", "memory=ef",
                                                         "memory=dgc"};
  constexpr std::array<std::string_view, 3> kValues = {"values=int8", "values=bf16",
                                                       "values=natural"};
  if (OneIn(random, 6)) add(kMemories[random() % kMemories.size()]);
  if (OneIn(random, 6)) add(kValues[random() % kValues.size()]);
  if (OneIn(random, 6)) add("scope=tensor");
  return text;
}

// Returns the size of a tensor. Long runs have small tensors.
uint64_t RandomElements(Random& random, uint64_t steps) {
  if (steps > 24 || OneIn(random, 2)) return 300 + random() % 5000;
  return OneIn(random, 3) ? 2 * kTileElements + 5 : kTileElements + 17;
}

void DrawCodecs(Random& random, JobSpec& job) {
  const auto draw = [&] { return RandomCodec(random); };
  const auto may_push = [&job](const std::string& codec) {
    JobSpec with = job;
    with.settings.push_codec = codec;
    return ValidateJob(with).ok();
  };
  const auto may_publish = [&job](const std::string& codec) {
    JobSpec with = job;
    with.settings.publish_codec = codec;
    return ValidateJob(with).ok();
  };
  // Momentum on the workers replaces the optimizer's.
  if (job.training.aggregation == Aggregation::kRankOrder && OneIn(random, 16)) {
    const bool is_demo = OneIn(random, 2);
    job.settings.push_codec =
        absl::StrCat(is_demo ? "demo" : "dgc", ":min_elements=0,vectors=1,ratio=0.05");
    const TrainingSettings drawn = job.training;
    job.training.optimizer = {.options = {{"lr", 0.01}}};
    if (is_demo && OneIn(random, 2)) job.training.optimizer.name = "signsgd";
    if (ValidateJob(job).ok()) {
      job.settings.publish_codec = DrawUntil(draw, may_publish, "bf16");
      return;
    }
    job.training = drawn;
  }
  job.settings.push_codec = DrawUntil(draw, may_push, "bf16");
  // On arrival, sums must not depend on the order, so values must have few bits.
  if (job.training.aggregation == Aggregation::kArrival) job.settings.push_codec = "fp32";
  job.settings.publish_codec = DrawUntil(draw, may_publish, "bf16");
}

}  // namespace

RunSize RandomSize(Random& random) {
  static constexpr std::array<uint32_t, 10> kWorkers = {1, 2, 2, 3, 3, 3, 3, 4, 5, 6};
  static constexpr std::array<size_t, 6> kServers = {1, 2, 2, 2, 3, 3};
  RunSize size = {.workers = kWorkers[random() % kWorkers.size()]};
  size.engines.resize(kServers[random() % kServers.size()]);
  for (uint32_t& engines : size.engines) {
    engines = OneIn(random, 2) ? 1 : static_cast<uint32_t>(1 + random() % 3);
  }
  const auto steps = [&random](uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random);
  };
  size.steps = OneIn(random, 48)   ? steps(101, 128)
               : OneIn(random, 24) ? steps(65, 80)
               : OneIn(random, 3)  ? steps(9, 24)
                                   : 8;
  return size;
}

std::string Describe(const JobSpec& job, const RunSize& size) {
  const TrainingSettings& training = job.training;
  return absl::StrCat(
      "workers=", size.workers, " servers=", size.engines.size(), " steps=", size.steps,
      " mode=", FormatNamedOptions(training.mode), " optimizer=",
      FormatNamedOptions({training.optimizer.name, training.optimizer.options}),
      " state=", training.optimizer.state, " push=", job.settings.push_codec,
      " publish=", job.settings.publish_codec,
      " gradient=", FormatOptionList(training.gradient),
      " scaling=", training.loss_scaling.name, " schedule=", training.schedule.name,
      " accumulate=", training.accumulate_steps,
      training.aggregation == Aggregation::kArrival ? " on arrival" : "",
      " tensors=", job.tensors.size(), " of ", job.tensors[0].elements());
}

JobSpec RandomJob(Random& random, const RunSize& size) {
  JobSpec job{.name = "sim", .workers = size.workers};
  job.training = RandomTraining(random, size.steps);
  // The sizes are one element, a few, a little more than a tile, or two blocks.
  job.tensors = {
      {.name = "embedding", .shape = {RandomElements(random, size.steps)}},
      {.name = "layer.weight", .shape = {12, 25}},
      {.name = "layer.bias", .shape = {25}, .group = {.learning_rate_scale = 2}},
      {.name = "temperature", .shape = {}}};
  for (uint64_t i = random() % 6; i > 0; --i) {
    job.tensors.push_back({.name = absl::StrCat("more.", i), .shape = {i, 30 + i}});
  }
  // L-BFGS treats all tensors as one vector, so it allows no group options.
  if (job.training.optimizer.name == "lbfgs") job.tensors[2].group = {};
  if (OneIn(random, 4)) job.tensors[1].group.frozen = true;
  DrawCodecs(random, job);
  return job;
}

bool NeedsDecisions(const JobSpec& job) {
  return (*TrainingPlan::Create(job.training, job.Trained()))->NeedsDecision();
}

// Not if error feedback follows the learning rate: workers learn the rate with a view,
// which may have the previous rate.
bool TakesUpdates(const JobSpec& job) {
  const bool compresses = std::ranges::any_of(
      *job.Transfers(), [](const auto& one) { return one.push.compresses(); });
  return !compresses || !ResidualsFollow(job);
}

// L-BFGS needs every gradient.
Skipping RandomSkipping(Random& random, const JobSpec& job) {
  if (job.training.optimizer.name == "lbfgs" || !OneIn(random, 3)) {
    return Skipping::kNothing;
  }
  return OneIn(random, 2) ? Skipping::kAtRandom : Skipping::kAlternating;
}

Rating RandomRating(Random& random, const JobSpec& job) {
  if (job.training.optimizer.name == "lbfgs" || !OneIn(random, 3)) {
    return Rating::kNothing;
  }
  return OneIn(random, 2) ? Rating::kAlike : Rating::kUnlike;
}

}  // namespace syncline::sim
