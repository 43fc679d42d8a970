#include "cli/bench/kernel.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench/figures.h"
#include "cli/bench/tensor.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/machine.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxParams = uint64_t{1} << 40;
constexpr int kMaxThreads = 1024;
constexpr int kMaxRounds = 100'000;
constexpr size_t kLeastCopyBytes = size_t{1} << 20;
constexpr size_t kMaxCopyBytes = size_t{256} << 20;  // as in comm/base/machine.cc
constexpr uint64_t kSamples = 1000;
constexpr uint64_t kSmallElements = 4096;

absl::Status Usage(const absl::Status& status) {
  return WithFailure(status, Failure::kUsage);
}

absl::Status CheckFlags(const KernelBenchOptions& options) {
  const auto require = [](bool holds, const char* what) {
    return holds ? absl::OkStatus() : Usage(absl::InvalidArgumentError(what));
  };
  SYNCLINE_RETURN_IF_ERROR(require(options.params >= 1 && options.params <= kMaxParams,
                                   "--params must be in [1, 2^40]"));
  SYNCLINE_RETURN_IF_ERROR(require(options.threads >= 1 && options.threads <= kMaxThreads,
                                   "--threads must be in [1, 1024]"));
  SYNCLINE_RETURN_IF_ERROR(require(options.warmup >= 0 && options.warmup <= kMaxRounds,
                                   "--warmup must be in [0, 100000]"));
  return require(options.rounds >= 1 && options.rounds <= kMaxRounds,
                 "--rounds must be in [1, 100000]");
}

// Returns as many bytes as each thread's kernel holds, within limits, so that small runs
// are fast.
size_t CopyBytes(const KernelBenchOptions& options) {
  return std::clamp<size_t>(options.elements_per_thread() * 16, kLeastCopyBytes,
                            kMaxCopyBytes);
}

// Two buffers, usually larger than the caches, whose pages are mapped.
class Copy {
 public:
  explicit Copy(size_t bytes)
      : from_(Buffer::Allocate(bytes)), to_(Buffer::Allocate(bytes)) {
    std::memset(from_.data(), 1, bytes);
    std::memset(to_.data(), 2, bytes);
  }

  void Run() {
    from_.data()[round_ % from_.size()] = static_cast<std::byte>(round_ + 3);
    StreamCopy(to_.mutable_view(), from_.view());
    // This also prevents the compiler from removing the copy.
    SYNCLINE_CHECK(to_.data()[round_ % to_.size()] == static_cast<std::byte>(round_ + 3));
    ++round_;
  }

 private:
  const Buffer from_;
  const Buffer to_;
  size_t round_ = 0;
};

double SecondsOf(int threads, const std::function<void(int)>& work) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  others.clear();  // joins all threads
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(end - start).count();
}

// ---- References ----

struct Element {
  double weight = 0;
  double gradient = 0;  // the same at each step
};

double LearningRate(const OptimizerSettings& settings) {
  return OptionOr(OptionsOf(settings.name), settings.options, "lr");
}

// Adam (Kingma and Ba 2014), or with decoupled decay AdamW (Loshchilov and Hutter 2017).
double AdamWeight(const OptimizerSettings& settings, Element element, int steps) {
  const std::vector<OptionSpec> specs = OptionsOf(settings.name);
  const auto option = [&](const char* name) {
    return OptionOr(specs, settings.options, name);
  };
  const double lr = option("lr"), decay = option("weight_decay");
  const double beta1 = option("beta1"), beta2 = option("beta2");
  const bool decoupled = option("decoupled") != 0;
  double mean = 0, square = 0;
  for (int t = 1; t <= steps; ++t) {
    const double gradient = element.gradient + (decoupled ? 0 : decay * element.weight);
    mean = beta1 * mean + (1 - beta1) * gradient;
    square = beta2 * square + (1 - beta2) * gradient * gradient;
    const double deviation = std::sqrt(square / (1 - std::pow(beta2, t)));
    element.weight -= (decoupled ? lr * decay * element.weight : 0) +
                      lr * mean / (1 - std::pow(beta1, t)) / (deviation + option("eps"));
  }
  return element.weight;
}

// SGD as in torch.
double SgdWeight(const OptimizerSettings& settings, Element element, int steps) {
  const std::vector<OptionSpec> specs = OptionsOf(settings.name);
  const auto option = [&](const char* name) {
    return OptionOr(specs, settings.options, name);
  };
  double direction = 0;
  for (int t = 1; t <= steps; ++t) {
    const double gradient = element.gradient + option("weight_decay") * element.weight;
    direction =
        t == 1 ? gradient
               : option("momentum") * direction + (1 - option("dampening")) * gradient;
    element.weight -= option("lr") * (option("momentum") == 0 ? gradient : direction);
  }
  return element.weight;
}

using Reference = double (*)(const OptimizerSettings&, Element, int);

// Returns the loop in double precision for these options; null if there is none.
Reference ReferenceOf(const KernelBench& bench) {
  static constexpr std::array<std::string_view, 6> kAdam = {
      "lr", "weight_decay", "decoupled", "beta1", "beta2", "eps"};
  static constexpr std::array<std::string_view, 4> kSgd = {"lr", "weight_decay",
                                                           "momentum", "dampening"};
  if (bench.state != StateType::kF32) return nullptr;
  const auto only = [&](std::span<const std::string_view> known) {
    return std::ranges::all_of(bench.settings.options, [&](const auto& option) {
      return std::ranges::count(known, option.first) > 0;
    });
  };
  const std::string& name = bench.settings.name;
  if ((name == "adam" || name == "adamw") && only(kAdam)) return AdamWeight;
  return name == "sgd" && only(kSgd) ? SgdWeight : nullptr;
}

absl::Status Wrong(uint64_t element, double weight, double expected) {
  return absl::DataLossError(
      absl::StrCat("weight ", element, " is ", weight, ", expected ", expected,
                   ": the benchmark's result is wrong; this is a bug"));
}

absl::Status CheckFloat64(const KernelBench& bench, const BenchResult& result,
                          Reference reference) {
  // FP32 rounds a weight about once per step.
  const double tolerance = 1e-6 + 1e-7 * result.steps;
  const uint64_t stride = std::max<uint64_t>(result.elements / kSamples, 1);
  for (uint64_t i = 0; i < result.elements; i += stride) {
    const Element element = {BenchWeight(i), result.gradient(i)};
    const double expected = reference(bench.settings, element, result.steps);
    const double weight = result.weight(i);
    const double size = std::max({std::abs(expected), std::abs(element.weight), 1e-3});
    if (!(std::abs(weight - expected) <= tolerance * size)) {
      return Wrong(i, weight, expected);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSmall(const KernelBench& bench, const BenchResult& result) {
  const uint64_t elements = std::min(result.elements, kSmallElements);
  BenchTensor small(*bench.optimizer, bench.state, elements);
  for (uint64_t i = 0; i < elements; ++i) {
    small.master()[i] = BenchWeight(i);
    small.gradient()[i] = static_cast<float>(result.gradient(i));
  }
  for (int step = 0; step < result.steps; ++step) {
    small.Step(LearningRate(bench.settings), nullptr);
  }
  for (uint64_t i = 0; i < elements; ++i) {
    if (result.weight(i) != small.master()[i]) {
      return Wrong(i, result.weight(i), small.master()[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const BenchResult& result) {
  for (uint64_t i = 0; i < result.elements; ++i) {
    if (!std::isfinite(result.weight(i))) return Wrong(i, result.weight(i), 0);
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t KernelBenchOptions::elements_per_thread() const {
  const uint64_t share = (params + threads - 1) / threads;
  return (share + kBenchRow - 1) / kBenchRow * kBenchRow;
}

void AddKernelFlags(CLI::App& app, const std::shared_ptr<KernelBenchOptions>& options) {
  app.add_option("--option", options->optimizer_options,
                 "An option of the optimizer, as name=number; may be repeated");
  app.add_option("--state", options->state, "Optimizer state: f32, bf16 or int8")
      ->capture_default_str();
  app.add_option("--out", options->out, "Codec of the published weights")
      ->capture_default_str();
  app.add_option("--params", options->params,
                 "Parameters; rounded up to rows of 1024 for each thread")
      ->capture_default_str();
  app.add_option("--threads", options->threads, "Threads, each with its own tensor")
      ->capture_default_str();
  app.add_option("--warmup", options->warmup, "Rounds that are not timed")
      ->capture_default_str();
  app.add_option("--rounds", options->rounds, "Rounds that are timed")
      ->capture_default_str();
  app.add_flag("--json", options->prints_json, "Print JSON");
}

absl::StatusOr<KernelBench> PrepareKernelBench(const KernelBenchOptions& options,
                                               const CodecRegistry& codecs) {
  SYNCLINE_RETURN_IF_ERROR(CheckFlags(options));
  absl::StatusOr<OptionValues> values = ParseOptions(options.optimizer_options);
  if (!values.ok()) return Usage(values.status());
  KernelBench bench;
  bench.settings = {
      .name = options.optimizer, .options = *std::move(values), .state = options.state};
  auto optimizer = MakeOptimizer(bench.settings);
  if (!optimizer.ok()) return Usage(optimizer.status());
  bench.optimizer = *std::move(optimizer);
  const auto out = codecs.FindByName(options.out);
  if (!out.ok()) return Usage(absl::InvalidArgumentError(out.status().message()));
  bench.out = *out;
  SYNCLINE_ASSIGN_OR_RETURN(bench.state, ParseStateType(options.state));
  return bench;
}

absl::Status CheckMemory(const KernelBenchOptions& options, double bytes) {
  constexpr double kGib = 1 << 30;
  const double needed =
      bytes + 2.0 * options.threads * static_cast<double>(CopyBytes(options));
  const double there = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed <= there) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("this measurement needs ", std::ceil(needed / kGib),
                   " GiB of memory, and this machine has ", std::floor(there / kGib),
                   "; choose fewer --params"));
}

KernelRounds MeasureRounds(const KernelBenchOptions& options,
                           const std::function<void(int thread)>& work) {
  std::vector<Copy> copies;
  for (int i = 0; i < options.threads; ++i) copies.emplace_back(CopyBytes(options));
  KernelRounds rounds;
  std::vector<double> copy_seconds;
  for (int round = 0; round < options.steps(); ++round) {
    const double seconds = SecondsOf(options.threads, work);
    const double copied =
        SecondsOf(options.threads, [&](int thread) { copies[thread].Run(); });
    if (round < options.warmup) continue;
    rounds.seconds.push_back(seconds);
    copy_seconds.push_back(copied);
  }
  const double bytes = 2.0 * options.threads * static_cast<double>(CopyBytes(options));
  rounds.copy_gbs = bytes / Quantiles(copy_seconds)["median"].get<double>() / 1e9;
  return rounds;
}

Json KernelReport(const KernelBenchOptions& options, const KernelRounds& rounds,
                  double bytes_per_param) {
  const MachineInfo machine = DescribeMachine();
  const Json seconds = Quantiles(rounds.seconds);
  const double ns_per_param =
      seconds["median"].get<double>() * 1e9 / static_cast<double>(options.elements());
  const double gbs = bytes_per_param / ns_per_param;
  return {
      {"machine",
       {{"cores", machine.cores}, {"isa", machine.isa}, {"copy_gbs", rounds.copy_gbs}}},
      {"settings",
       {{"optimizer", options.optimizer},
        {"options", options.optimizer_options},
        {"state", options.state},
        {"out", options.out},
        {"params", options.elements()},
        {"threads", options.threads},
        {"warmup", options.warmup},
        {"rounds", options.rounds}}},
      {"seconds", seconds},
      {"ns_per_param", ns_per_param},
      {"bytes_per_param", bytes_per_param},
      {"bandwidth_gbs", gbs},
      {"copy_gbs", rounds.copy_gbs},
      {"of_copy", gbs / rounds.copy_gbs}};
}

float BenchWeight(uint64_t i) { return static_cast<float>(1 + i % 101) / 64; }

float BenchGradient(uint32_t rank, uint64_t i) {
  return (static_cast<float>((i * 37 + rank * 11) % 127) - 63) / 128;
}

absl::StatusOr<std::string> CheckResult(const KernelBench& bench,
                                        const BenchResult& result) {
  if (const Reference reference = ReferenceOf(bench); reference != nullptr) {
    SYNCLINE_RETURN_IF_ERROR(CheckFloat64(bench, result, reference));
    return "float64";
  }
  if (bench.optimizer->tensor_reduction() == nullptr &&
      bench.optimizer->job_reduction() == nullptr) {
    SYNCLINE_RETURN_IF_ERROR(CheckSmall(bench, result));
    return "small";
  }
  SYNCLINE_RETURN_IF_ERROR(CheckFinite(result));
  return "finite";
}

}  // namespace syncline
