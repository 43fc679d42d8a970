// One worker of the Fashion-MNIST demo: README.md says how to start it.
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "comm/base/exit_codes.h"
#include "comm/base/status.h"
#include "worker/examples/fashion_mnist/flags.h"
#include "worker/examples/fashion_mnist/local_exchange.h"
#include "worker/examples/fashion_mnist/run_report.h"
#include "worker/examples/fashion_mnist/session_exchange.h"
#include "worker/examples/fashion_mnist/trainer.h"

namespace syncline::fashion_mnist {
namespace {

// Who this process is in its job. Alone it is rank 0 of 1.
struct Place {
  int rank = 0;
  int world_size = 1;
};

int64_t CountElements(std::span<const Parameter> parameters) {
  int64_t elements = 0;
  for (const Parameter& parameter : parameters) {
    elements += static_cast<int64_t>(parameter.values.size());
  }
  return elements;
}

absl::StatusOr<BatchPlan> MakePlan(const TrainFlags& flags, const Place& place) {
  if (BatchPlan::kGrowth * flags.batch_size * place.world_size > kTrainSamples) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d workers with --batch-size %d, in the last epochs %d times as large, need "
        "more than the %d images",
        place.world_size, flags.batch_size, BatchPlan::kGrowth, kTrainSamples));
  }
  return BatchPlan({.samples = kTrainSamples,
                    .epochs = flags.epochs,
                    .batch_size = flags.batch_size,
                    .rank = place.rank,
                    .world_size = place.world_size,
                    .seed = flags.seed});
}

RunReport Describe(const TrainFlags& flags, const TrainParts& parts, const Place& place,
                   const TrainResult& result) {
  const Traffic traffic = parts.exchange.traffic();
  return {.name = flags.name,
          .precision = Name(flags.precision),
          .rank = place.rank,
          .workers = place.world_size,
          .steps = result.steps,
          .parameters = CountElements(parts.model.parameters()),
          .loss = result.loss,
          .seconds = result.seconds,
          .samples_per_second = result.samples_per_second,
          .bytes_pushed = traffic.bytes_pushed,
          .bytes_pulled = traffic.bytes_pulled,
          .evaluations = result.evaluations};
}

// Rank 0 shows how it goes and tests the final weights; every rank writes its own report.
absl::Status TrainAndReport(const TrainFlags& flags, const TrainParts& parts,
                            const Place& place) {
  const bool leads = place.rank == 0;
  int64_t total_steps = parts.plan.total_steps();
  if (flags.max_steps > 0) total_steps = std::min(total_steps, flags.max_steps);
  SYNCLINE_ASSIGN_OR_RETURN(const TrainResult result,
                            Train(parts, {.total_steps = total_steps,
                                          .shows_progress = leads,
                                          .world_size = place.world_size,
                                          .eval_steps = leads ? flags.eval_steps : 0}));
  RunReport report = Describe(flags, parts, place, result);
  if (leads) {
    const Samples& test = parts.dataset.test;
    SYNCLINE_ASSIGN_OR_RETURN(const int64_t correct, parts.model.CountCorrect(test));
    report.accuracy = static_cast<double>(correct) / static_cast<double>(test.size());
    std::printf("%s: test accuracy %.2f %% after %d steps, %.1f s, on %s\n",
                flags.name.c_str(), report.accuracy * 100, static_cast<int>(report.steps),
                report.seconds, parts.model.device().c_str());
  }
  if (flags.report.empty()) return absl::OkStatus();
  return WriteTextFile(RankPath(flags.report, place.rank), ToJson(report));
}

absl::Status TrainLocally(const TrainFlags& flags, const Dataset& dataset, Model& model,
                          const StopSignal& stop) {
  const Place alone;
  SYNCLINE_ASSIGN_OR_RETURN(BatchPlan plan, MakePlan(flags, alone));
  const auto exchange = MakeLocalExchange(model.parameters(), flags.optimizer);
  return TrainAndReport(flags, {model, *exchange, plan, dataset, stop}, alone);
}

// Nobody may serve where a program looks that was told nothing.
constexpr char kHint[] =
    "fashion_mnist: no SYNCLINE_COORDINATOR: waits for one on this host; to train with "
    "servers of its own, start it as: syncline run -- fashion_mnist\n";

// The weights this process begins with only count if it is the first of its job.
absl::Status TrainInJob(const TrainFlags& flags, const Dataset& dataset, Model& model,
                        const StopSignal& stop) {
  if (std::getenv("SYNCLINE_COORDINATOR") == nullptr) std::fputs(kHint, stderr);
  SYNCLINE_ASSIGN_OR_RETURN(
      const std::unique_ptr<SessionExchange> exchange,
      SessionExchange::Join(model.parameters(), flags.optimizer,
                            {.push = flags.push_codec, .publish = flags.publish_codec}));
  const Place place{.rank = exchange->rank(), .world_size = exchange->world_size()};
  SYNCLINE_ASSIGN_OR_RETURN(BatchPlan plan, MakePlan(flags, place));
  const absl::Status trained =
      TrainAndReport(flags, {model, *exchange, plan, dataset, stop}, place);
  const absl::Status left = exchange->Leave();
  return trained.ok() ? left : trained;
}

absl::Status Train(const Flags& flags, const StopSignal& stop) {
  SYNCLINE_ASSIGN_OR_RETURN(const Dataset dataset, LoadDataset(flags.train.data_dir));
  Precision computes_in = flags.train.precision;
  if (computes_in == Precision::kBf16 && !Model::HasBf16Arithmetic()) {
    std::fputs(
        "fashion_mnist: no BF16 arithmetic here, and LibTorch takes ten times as long to "
        "emulate it: computing in FP32, with BF16 on the wire\n",
        stderr);
    computes_in = Precision::kFp32;
  }
  Model model({.precision = computes_in,
               .seed = flags.train.seed,
               .threads = flags.train.threads,
               .hidden = flags.train.hidden});
  return flags.command == Command::kTrainLocally
             ? TrainLocally(flags.train, dataset, model, stop)
             : TrainInJob(flags.train, dataset, model, stop);
}

absl::Status Summarize(const SummarizeFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<RunReport> runs, ReadRuns(flags.reports));
  std::fputs(SummaryTable(runs).c_str(), stdout);
  return flags.out.empty() ? absl::OkStatus()
                           : WriteTextFile(flags.out, SummaryJson(runs));
}

// By default glibc gives large blocks back to the kernel when they are freed, and takes
// the page faults again at the next step: a third of the time of a backward pass.
void KeepFreedMemory() {
  constexpr int kLimit = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLimit);
  mallopt(M_TRIM_THRESHOLD, kLimit);
}

int Run(int argc, char** argv) {
  const StopSignal stop;  // first: before any library starts a thread
  KeepFreedMemory();
  const Flags flags = ParseFlags(argc, argv);
  if (flags.command == Command::kExit) return flags.exit_code;
  const absl::Status status = flags.command == Command::kSummarize
                                  ? Summarize(flags.summarize)
                                  : Train(flags, stop);
  if (stop.signal() != 0) return 128 + stop.signal();
  if (!status.ok())
    std::fprintf(stderr, "%s\n", ErrorLine(status, "fashion_mnist").c_str());
  // Job controllers go by the code (docs/errors.md).
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace syncline::fashion_mnist

int main(int argc, char** argv) { return syncline::fashion_mnist::Run(argc, argv); }
