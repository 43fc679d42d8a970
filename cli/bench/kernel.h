// What the benchmarks of the servers' arithmetic share: their flags, rounds of a kernel
// that alternate with copies of memory, and checks of the weights that came out.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const KernelBench bench, PrepareKernelBench(options));
//   const KernelRounds rounds = MeasureRounds(options, [&](int thread) { ... });
//   Json report = KernelReport(options, rounds, bytes_per_param);
//
// Each thread steps a tensor of its own, as the engine threads of a server do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/codec/codec.h"
#include "nlohmann/json.hpp"
#include "server/optimizer/optimizer.h"

namespace syncline {

// Elements of a row of the tensors that are stepped.
inline constexpr uint64_t kBenchRow = 1024;

struct KernelBenchOptions {
  std::string optimizer = "adamw";
  std::vector<std::string> optimizer_options = {};  // "name=number"
  std::string state = "f32";
  std::string out = "fp32";
  uint64_t params = 64'000'000;
  int threads = 1;
  int warmup = 2;
  int rounds = 11;
  bool prints_json = false;

  // Whole rows that each thread steps; all together are `params` or a little more.
  uint64_t elements_per_thread() const;
  uint64_t elements() const { return elements_per_thread() * threads; }
  int steps() const { return warmup + rounds; }
};

// --option, --state, --out, --params, --threads, --warmup, --rounds and --json.
void AddKernelFlags(CLI::App& app, const std::shared_ptr<KernelBenchOptions>& options);

// What the flags come down to. All refusals are Failure::kUsage.
struct KernelBench {
  OptimizerSettings settings = {};
  std::unique_ptr<Optimizer> optimizer = {};
  StateType state = StateType::kF32;
  const Codec* out = nullptr;
};
absl::StatusOr<KernelBench> PrepareKernelBench(const KernelBenchOptions& options,
                                               const CodecRegistry& codecs);

// ResourceExhausted when this machine has less memory than `bytes` and the buffers that
// are copied between the rounds.
absl::Status CheckMemory(const KernelBenchOptions& options, double bytes);

// Seconds of each measured round, and bytes read plus written per second, in 1e9, by
// copies of as many threads between the rounds: the median, so that both figures have
// seen the same load of the machine.
struct KernelRounds {
  std::vector<double> seconds = {};
  double copy_gbs = 0;
};
// Calls work(0) ... work(threads - 1) at the same time, once for each round.
KernelRounds MeasureRounds(const KernelBenchOptions& options,
                           const std::function<void(int thread)>& work);

// The part of the report that all kernels have; `bytes_per_param` is what a round has to
// move.
nlohmann::json KernelReport(const KernelBenchOptions& options, const KernelRounds& rounds,
                            double bytes_per_param);

// ---- Values, and what must come out ----

// What element `i` begins with, and what worker `rank` pushes for it at every step: short
// enough to be exact in BF16 and FP16.
float BenchWeight(uint64_t i);
float BenchGradient(uint32_t rank, uint64_t i);

// A tensor after a benchmark.
struct BenchResult {
  uint64_t elements = 0;
  int steps = 0;
  std::function<double(uint64_t)> gradient = {};  // the mean one, the same at each step
  std::function<float(uint64_t)> weight = {};
};

// How the result was checked, for the report: "float64" against a loop in double
// precision (sampled elements of adam, adamw and sgd with FP32 state), "small" against
// the bits of the first elements alone in one strip (other optimizers that look at single
// elements), "finite" otherwise. DataLoss names the element that is wrong.
absl::StatusOr<std::string> CheckResult(const KernelBench& bench,
                                        const BenchResult& result);

}  // namespace syncline
