#include "cli/bench/codec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/bench/coded_tensor.h"
#include "cli/bench/figures.h"
#include "cli/bench/kernel.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/machine.h"
#include "comm/base/status.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;
using Times = BenchCodedTensor::Times;

constexpr uint64_t kMaxElements = uint64_t{1} << 36;
constexpr int kMaxThreads = 1024;
constexpr int kMaxRounds = 100'000;

struct CodecBenchOptions {
  std::string name = "onebit";
  std::string ratio = {};
  // `params` is the number of elements. Of the other fields only threads and rounds
  // matter.
  KernelBenchOptions rounds = {.params = uint64_t{1} << 25};
};

absl::Status CheckFlags(const KernelBenchOptions& options) {
  const char* wrong = nullptr;
  if (options.params < 1 || options.params > kMaxElements) {
    wrong = "--elements must be in [1, 2^36]";
  } else if (options.threads < 1 || options.threads > kMaxThreads) {
    wrong = "--threads must be in [1, 1024]";
  } else if (options.warmup < 0 || options.warmup > kMaxRounds) {
    wrong = "--warmup must be in [0, 100000]";
  } else if (options.rounds < 1 || options.rounds > kMaxRounds) {
    wrong = "--rounds must be in [1, 100000]";
  }
  if (wrong == nullptr) return absl::OkStatus();
  return WithFailure(absl::InvalidArgumentError(wrong), Failure::kUsage);
}

// Returns --name, with --ratio added to its options.
std::string TransferText(const CodecBenchOptions& options) {
  if (options.ratio.empty()) return options.name;
  const bool has_options = options.name.find(':') != std::string::npos;
  return absl::StrCat(options.name, has_options ? "," : ":", "ratio=", options.ratio);
}

const char* NameOf(const Transfer& transfer) {
  switch (transfer.memory.kind) {
    case MemoryKind::kNone:
      return "none";
    case MemoryKind::kErrorFeedback:
      return "ef";
    case MemoryKind::kMomentumCorrection:
      return "dgc";
  }
  return "none";
}

// Returns the times of each measured round: for each part, that of the slowest thread.
std::vector<Times> Slowest(const std::vector<std::vector<Times>>& threads, int warmup) {
  std::vector<Times> rounds(threads.front().begin() + warmup, threads.front().end());
  for (size_t thread = 1; thread < threads.size(); ++thread) {
    for (size_t i = 0; i < rounds.size(); ++i) {
      const Times& other = threads[thread][i + warmup];
      rounds[i].encode = std::max(rounds[i].encode, other.encode);
      rounds[i].parse = std::max(rounds[i].parse, other.parse);
      rounds[i].decode = std::max(rounds[i].decode, other.decode);
      rounds[i].wire_bytes += other.wire_bytes;
    }
  }
  return rounds;
}

// Reports one part of the rounds: its seconds, and nanoseconds per element.
void AddPart(const char* part, const std::vector<double>& seconds, uint64_t elements,
             Json& report) {
  const Json quantiles = Quantiles(seconds);
  const double ns =
      quantiles["median"].get<double>() * 1e9 / static_cast<double>(elements);
  report[absl::StrCat(part, "_seconds")] = quantiles;
  report[absl::StrCat(part, "_ns_per_element")] = ns;
  report[absl::StrCat(part, "_gbs")] = sizeof(float) / ns;
}

void AddTimes(const std::vector<Times>& rounds, uint64_t elements, Json& report) {
  std::vector<double> all, encode, parse, decode;
  double wire_bytes = 0;  // differs between rounds of codecs that choose at random
  for (const Times& round : rounds) {
    all.push_back(round.encode + round.parse + round.decode);
    encode.push_back(round.encode);
    parse.push_back(round.parse);
    decode.push_back(round.decode);
    wire_bytes +=
        static_cast<double>(round.wire_bytes) / static_cast<double>(rounds.size());
  }
  report["seconds"] = Quantiles(all);
  AddPart("encode", encode, elements, report);
  AddPart("parse", parse, elements, report);
  AddPart("decode", decode, elements, report);
  report["wire_bytes"] = std::llround(wire_bytes);
  report["ratio"] = sizeof(float) * static_cast<double>(elements) / wire_bytes;
}

Json CommonReport(const KernelBenchOptions& options, double copy_gbs) {
  const MachineInfo machine = DescribeMachine();
  return {{"bench", "codec"},
          {"machine",
           {{"cores", machine.cores}, {"isa", machine.isa}, {"copy_gbs", copy_gbs}}},
          {"settings",
           {{"elements", options.elements()},
            {"threads", options.threads},
            {"warmup", options.warmup},
            {"rounds", options.rounds}}},
          {"copy_gbs", copy_gbs}};
}

absl::StatusOr<Json> Measure(const CodecBenchOptions& options) {
  const KernelBenchOptions& kernel = options.rounds;
  SYNCLINE_RETURN_IF_ERROR(CheckFlags(kernel));
  const std::string text = TransferText(options);
  const auto transfer = ParseTransfer(text);
  if (!transfer.ok()) return WithFailure(transfer.status(), Failure::kUsage);
  BenchCodedTensor::Options tensor = {.transfer = *transfer,
                                      .elements = kernel.elements_per_thread()};
  const double bytes = BenchCodedTensor::Bytes(tensor) * kernel.threads;
  if (!CheckMemory(kernel, bytes).ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this measurement needs ", bytes / 1e9,
                     " GB beside its copies, more than this machine has; choose fewer "
                     "--elements"));
  }
  std::vector<BenchCodedTensor> tensors;
  tensors.reserve(kernel.threads);
  for (int i = 0; i < kernel.threads; ++i) {
    tensor.number = static_cast<uint32_t>(i);
    tensors.emplace_back(tensor);
  }
  std::vector<std::vector<Times>> times(kernel.threads);
  const KernelRounds rounds = MeasureRounds(
      kernel, [&](int thread) { times[thread].push_back(tensors[thread].Round()); });
  Json report = CommonReport(kernel, rounds.copy_gbs);
  report["settings"]["codec"] = CanonicalTransfer(text);
  report["settings"]["memory"] = NameOf(*transfer);
  AddTimes(Slowest(times, kernel.warmup), kernel.elements(), report);
  for (const BenchCodedTensor& one : tensors) {
    SYNCLINE_ASSIGN_OR_RETURN(report["verified"], one.Check());
  }
  return report;
}

void Print(const Json& report) {
  const Json& settings = report["settings"];
  std::printf("%s of %.4g million elements by %d threads, memory %s\n",
              settings["codec"].get<std::string>().c_str(),
              settings["elements"].get<double>() / 1e6, settings["threads"].get<int>(),
              settings["memory"].get<std::string>().c_str());
  for (const char* part : {"encode", "decode"}) {
    std::printf("  %-8s %.3f ns per element, %.2f GB/s of FP32\n", part,
                report[absl::StrCat(part, "_ns_per_element")].get<double>(),
                report[absl::StrCat(part, "_gbs")].get<double>());
  }
  std::printf("  wire     %.4g bytes per element, %.2f x smaller than FP32\n",
              sizeof(float) / report["ratio"].get<double>(),
              report["ratio"].get<double>());
  std::printf("  copy     %.2f GB/s\n", report["copy_gbs"].get<double>());
}

absl::StatusOr<int> BenchCodec(const CodecBenchOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const Json report, Measure(options));
  if (options.rounds.prints_json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    Print(report);
  }
  return kExitDone;
}

}  // namespace

void AddBenchCodec(CLI::App& bench, Command* selected) {
  auto options = std::make_shared<CodecBenchOptions>();
  KernelBenchOptions& rounds = options->rounds;
  CLI::App* app =
      bench.add_subcommand("codec", "Time and size of a codec for each element");
  app->add_option("--name", options->name,
                  "Codec, as in job settings: \"topk:ratio=0.01,values=int8\"")
      ->capture_default_str();
  app->add_option("--ratio", options->ratio, "The same as ratio= in --name");
  app->add_option("--elements", rounds.params,
                  "Elements; rounded up to rows of 1024 for each thread")
      ->capture_default_str();
  app->add_option("--threads", rounds.threads, "Threads, each with its own tensor")
      ->capture_default_str();
  app->add_option("--warmup", rounds.warmup, "Rounds that are not timed")
      ->capture_default_str();
  app->add_option("--rounds", rounds.rounds, "Rounds that are timed")
      ->capture_default_str();
  app->add_flag("--json", rounds.prints_json, "Print JSON");
  app->callback(
      [options, selected] { *selected = [options] { return BenchCodec(*options); }; });
}

}  // namespace syncline
