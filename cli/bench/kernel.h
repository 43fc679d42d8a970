// Shared by the benchmarks of the servers' arithmetic: flags, rounds of a kernel that
// alternate with copies of memory, and checks of the resulting weights.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const KernelBench bench, PrepareKernelBench(options));
//   const KernelRounds rounds = MeasureRounds(options, [&](int thread) { ... });
//   Json report = KernelReport(options, rounds, bytes_per_param);
//
// Each thread steps its own tensor, as the engine threads of a server do.
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

// Number of elements in a row of the benchmarked tensors.
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

  // Number of elements that each thread steps, in whole rows. All threads together step
  // `params` or a few more.
  uint64_t elements_per_thread() const;
  uint64_t elements() const { return elements_per_thread() * threads; }
  int steps() const { return warmup + rounds; }
};

// Adds --option, --state, --out, --params, --threads, --warmup, --rounds and --json.
void AddKernelFlags(CLI::App& app, const std::shared_ptr<KernelBenchOptions>& options);

// The checked flags. Every refusal is Failure::kUsage.
struct KernelBench {
  OptimizerSettings settings = {};
  std::unique_ptr<Optimizer> optimizer = {};
  StateType state = StateType::kF32;
  const Codec* out = nullptr;
};
absl::StatusOr<KernelBench> PrepareKernelBench(const KernelBenchOptions& options,
                                               const CodecRegistry& codecs);

// Fails with ResourceExhausted if this machine has less memory than `bytes` plus the
// buffers that are copied between the rounds.
absl::Status CheckMemory(const KernelBenchOptions& options, double bytes);

// `seconds`: of each measured round. `copy_gbs`: bytes read plus written, in 1e9 per
// second, by copies in the same number of threads between the rounds. It is the median,
// so that both values saw the same load of the machine.
struct KernelRounds {
  std::vector<double> seconds = {};
  double copy_gbs = 0;
};
// Calls work(0) ... work(threads - 1) at the same time, once for each round.
KernelRounds MeasureRounds(const KernelBenchOptions& options,
                           const std::function<void(int thread)>& work);

// Returns the part of the report that all kernels share. `bytes_per_param`: bytes that a
// round must move per parameter.
nlohmann::json KernelReport(const KernelBenchOptions& options, const KernelRounds& rounds,
                            double bytes_per_param);

// ---- Values and expected results ----

// The initial weight of element `i`, and the gradient that worker `rank` pushes for it at
// every step. Both are exact in BF16 and FP16.
float BenchWeight(uint64_t i);
float BenchGradient(uint32_t rank, uint64_t i);

// The state of a tensor after a benchmark.
struct BenchResult {
  uint64_t elements = 0;
  int steps = 0;
  // Mean over workers, the same at each step.
  std::function<double(uint64_t)> gradient = {};
  std::function<float(uint64_t)> weight = {};
};

// Checks the result and returns how:
//   float64   sampled elements, against a loop in double precision (adam, adamw and sgd
//             with FP32 state)
//   small     the first elements, bit by bit, against the same steps of a small tensor
//             (other elementwise optimizers)
//   finite    no weight is NaN or infinite (all others)
// Fails with DataLoss, which names the wrong element.
absl::StatusOr<std::string> CheckResult(const KernelBench& bench,
                                        const BenchResult& result);

}  // namespace syncline
