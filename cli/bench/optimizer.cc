#include "cli/bench/optimizer.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench/kernel.h"
#include "cli/bench/tensor.h"
#include "comm/base/exit_codes.h"
#include "comm/base/status.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

void Print(const Json& report) {
  const Json& settings = report["settings"];
  std::printf("%s of %.4g million parameters by %d threads, %s state\n",
              settings["optimizer"].get<std::string>().c_str(),
              settings["params"].get<double>() / 1e6, settings["threads"].get<int>(),
              settings["state"].get<std::string>().c_str());
  std::printf("  per parameter  %.3f ns, %.4g bytes\n",
              report["ns_per_param"].get<double>(),
              report["bytes_per_param"].get<double>());
  std::printf("  bandwidth      %.2f GB/s, %.0f %% of the %.2f GB/s of a copy\n",
              report["bandwidth_gbs"].get<double>(),
              report["of_copy"].get<double>() * 100, report["copy_gbs"].get<double>());
}

absl::StatusOr<Json> Measure(const KernelBenchOptions& options) {
  const CodecRegistry codecs = CodecRegistry::Builtin();
  SYNCLINE_ASSIGN_OR_RETURN(const KernelBench bench, PrepareKernelBench(options, codecs));
  const uint64_t elements = options.elements_per_thread();
  const double width = 2.0 + static_cast<double>(bench.optimizer->slots().size());
  SYNCLINE_RETURN_IF_ERROR(CheckMemory(
      options, static_cast<double>(options.elements()) * sizeof(float) * width));
  std::vector<BenchTensor> tensors;
  tensors.reserve(options.threads);
  for (int i = 0; i < options.threads; ++i) {
    BenchTensor& tensor = tensors.emplace_back(*bench.optimizer, bench.state, elements);
    for (uint64_t j = 0; j < elements; ++j) {
      tensor.master()[j] = BenchWeight(j);
      tensor.gradient()[j] = BenchGradient(0, j);
    }
  }
  // FP32 weights are published without encoding.
  const Codec* out = bench.out->id() == CodecId::kFp32 ? nullptr : bench.out;
  const double learning_rate =
      OptionOr(OptionsOf(bench.settings.name), bench.settings.options, "lr");
  const KernelRounds rounds = MeasureRounds(
      options, [&](int thread) { tensors[thread].Step(learning_rate, out); });
  const double out_bytes =
      out == nullptr ? 0 : static_cast<double>(out->MaxEncodedBytes(1));
  Json report = KernelReport(options, rounds, tensors[0].bytes_per_element() + out_bytes);
  report["bench"] = "optimizer";
  for (BenchTensor& tensor : tensors) {
    SYNCLINE_ASSIGN_OR_RETURN(
        report["verified"],
        CheckResult(bench, {.elements = elements,
                            .steps = options.steps(),
                            .gradient = [](uint64_t i) { return BenchGradient(0, i); },
                            .weight = [&](uint64_t i) { return tensor.master()[i]; }}));
  }
  return report;
}

absl::StatusOr<int> BenchOptimizer(const KernelBenchOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const Json report, Measure(options));
  if (options.prints_json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    Print(report);
  }
  return kExitDone;
}

}  // namespace

void AddBenchOptimizer(CLI::App& bench, Command* selected) {
  auto options = std::make_shared<KernelBenchOptions>();
  CLI::App* app =
      bench.add_subcommand("optimizer", "Time of an optimizer for each parameter");
  app->add_option("--name", options->optimizer, "Optimizer")->capture_default_str();
  AddKernelFlags(*app, options);
  app->callback([options, selected] {
    *selected = [options] { return BenchOptimizer(*options); };
  });
}

}  // namespace syncline
