#include "tests/sim/random_job.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

namespace syncline::sim {

double Between(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

bool OneIn(Random& random, int n) {
  return std::uniform_int_distribution<int>(1, n)(random) == 1;
}

namespace {

// Something of everything that a step is made of.
TrainingSettings RandomTraining(Random& random) {
  static constexpr std::array<std::string_view, 7> kOptimizers = {
      "adamw", "sgd", "lamb", "adafactor", "lbfgs", "sophia", "lion"};
  const size_t choice = std::uniform_int_distribution<size_t>(0, 9)(random);
  TrainingSettings training;
  if (std::ranges::count(OptimizerNames(), kOptimizers[choice % kOptimizers.size()]) ==
      0) {
    return training;
  }
  training.optimizer = {.name = std::string(kOptimizers[choice % kOptimizers.size()]),
                        .options = {{"lr", 0.01}}};
  if (training.optimizer.name == "sgd") training.optimizer.options["momentum"] = 0.9;
  if (training.optimizer.name == "sophia") {
    training.optimizer.options["hessian_interval"] = 2;
  }
  if (OneIn(random, 3)) training.gradient["clip_global_norm"] = 1.0;
  if (training.optimizer.name != "lbfgs") {
    if (OneIn(random, 4)) training.optimizer.state = OneIn(random, 2) ? "bf16" : "int8";
    if (OneIn(random, 6)) training.gradient["clip_value"] = 0.5;
    if (OneIn(random, 6)) training.gradient["agc"] = 0.01;
    if (OneIn(random, 6)) training.gradient["centralize"] = 1;
  }
  if (OneIn(random, 4)) {
    training.loss_scaling = {.name = "torch",
                             .values = {{"init_scale", 1024}, {"growth_interval", 2}}};
  }
  if (OneIn(random, 3)) {
    training.schedule = {
        .name = "cosine",
        .values = {
            {"warmup_steps", 2}, {"warmup_start_factor", 0.5}, {"total_steps", kSteps}}};
  }
  if (OneIn(random, 4)) training.accumulate_steps = OneIn(random, 2) ? 2 : 3;
  if (OneIn(random, 5)) training.aggregation = Aggregation::kArrival;
  return training;
}

std::string RandomCodec(Random& random) {
  constexpr const char* kCodecs[] = {
      "fp32",
      "bf16",
      "onebit:min_elements=0,vectors=1",
      "onebit:min_elements=100,block_log2=8",
      "int8:min_elements=0,vectors=1,dense_steps=3",
      "topk:min_elements=0,vectors=1,ratio=0.05",
      "topk:min_elements=100,vectors=1,ratio=0.3,values=int8,memory=none"};
  return kCodecs[random() % std::size(kCodecs)];
}

// Those that are for gradients only, too.
std::string RandomPushCodec(Random& random) {
  constexpr const char* kCodecs[] = {
      "signsgd:min_elements=100", "int4-stochastic:min_elements=0,vectors=1,rotate=1",
      "topk:min_elements=0,vectors=1,ratio=0.05,warmup_steps=4,warmup_ratio=0.5"};
  if (!OneIn(random, 3)) return RandomCodec(random);
  return kCodecs[random() % std::size(kCodecs)];
}

}  // namespace

JobSpec RandomJob(Random& random) {
  JobSpec job{.name = "sim", .workers = kWorkers};
  job.training = RandomTraining(random);
  job.push_codec = RandomPushCodec(random);
  job.publish_codec = RandomCodec(random);
  // Hessian estimates and what is kept of gradients do not go together.
  if (job.training.optimizer.name == "sophia") job.push_codec = "bf16";
  // Sums that do not depend on the order need values of few bits.
  if (job.training.aggregation == Aggregation::kArrival) job.push_codec = "fp32";
  // One element, a few, a tile and a bit: more tensors than shards, one of several tiles.
  job.tensors = {
      {.name = "embedding", .shape = {kTileElements + 17}},
      {.name = "layer.weight", .shape = {12, 25}},
      {.name = "layer.bias", .shape = {25}, .group = {.learning_rate_scale = 2}},
      {.name = "temperature", .shape = {}}};
  // It steps in one direction for all tensors together.
  if (job.training.optimizer.name == "lbfgs") job.tensors[2].group = {};
  if (OneIn(random, 4)) job.tensors[1].group.frozen = true;
  return job;
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
