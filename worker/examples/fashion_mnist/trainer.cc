#include "worker/examples/fashion_mnist/trainer.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "comm/base/status.h"
#include "worker/examples/fashion_mnist/progress.h"

namespace syncline::fashion_mnist {
namespace {

// A mean that forgets: about the last fifty batches count.
class RecentMean {
 public:
  void Add(double value) {
    weight_ = weight_ * kKeep + (1 - kKeep);
    sum_ = sum_ * kKeep + value * (1 - kKeep);
  }
  double value() const { return weight_ > 0 ? sum_ / weight_ : 0; }

 private:
  static constexpr double kKeep = 0.98;
  double sum_ = 0;
  double weight_ = 0;
};

class Loop {
 public:
  Loop(const TrainParts& parts, const TrainOptions& options)
      : parts_(parts), options_(options), first_step_(parts.exchange.step()) {}

  absl::StatusOr<TrainResult> Run() {
    ProgressLine line;
    while (parts_.exchange.step() < options_.total_steps) {
      if (parts_.stop.signal() != 0) return absl::CancelledError("stopped by a signal");
      SYNCLINE_RETURN_IF_ERROR(Step());
      if (options_.shows_progress) line.Update(Now());
      const int64_t step = parts_.exchange.step();
      if (options_.eval_steps > 0 && step % options_.eval_steps == 0) {
        SYNCLINE_RETURN_IF_ERROR(Evaluate());
      }
    }
    SYNCLINE_RETURN_IF_ERROR(WaitForAllWeights());
    const Progress end = Now();
    if (options_.shows_progress) line.Finish(end);
    return TrainResult{.steps = end.step - first_step_,
                       .loss = end.loss,
                       .seconds = end.seconds,
                       .samples_per_second = end.samples_per_second,
                       .evaluations = std::move(evaluations_)};
  }

 private:
  absl::Status Step() {
    const int64_t step = parts_.exchange.step();
    const std::span<const uint32_t> batch = parts_.plan.Batch(step);
    const auto samples = static_cast<int64_t>(batch.size());
    SYNCLINE_ASSIGN_OR_RETURN(
        const BatchResult result,
        parts_.model.TrainStep(parts_.dataset.train, batch, parts_.exchange));
    SYNCLINE_RETURN_IF_ERROR(
        parts_.exchange.EndStep({.loss = result.loss, .samples = samples}));
    loss_.Add(result.loss);
    accuracy_.Add(static_cast<double>(result.correct) / samples);
    samples_ += samples;
    return absl::OkStatus();
  }

  absl::Status WaitForAllWeights() {
    for (size_t i = 0; i < parts_.model.parameters().size(); ++i) {
      SYNCLINE_RETURN_IF_ERROR(parts_.exchange.WaitForWeights(i));
    }
    return absl::OkStatus();
  }

  // Its own time does not count as training.
  absl::Status Evaluate() {
    SYNCLINE_RETURN_IF_ERROR(WaitForAllWeights());
    const Clock::time_point begin = Clock::now();
    const Progress now = Now();
    const Samples& test = parts_.dataset.test;
    SYNCLINE_ASSIGN_OR_RETURN(const int64_t correct, parts_.model.CountCorrect(test));
    evaluations_.push_back(
        {.step = now.step,
         .seconds = now.seconds,
         .accuracy = static_cast<double>(correct) / static_cast<double>(test.size()),
         .bytes_pushed = now.bytes_pushed,
         .bytes_pulled = now.bytes_pulled});
    begin_ += Clock::now() - begin;
    return absl::OkStatus();
  }

  Progress Now() const {
    const std::chrono::duration<double> elapsed = Clock::now() - begin_;
    const Traffic traffic = parts_.exchange.traffic();
    return {.step = std::min(parts_.exchange.step(), options_.total_steps),
            .total_steps = options_.total_steps,
            .seconds = elapsed.count(),
            .first_step = first_step_,
            .loss = loss_.value(),
            .accuracy = accuracy_.value(),
            .samples_per_second = samples_ * options_.world_size / elapsed.count(),
            .bytes_pushed = traffic.bytes_pushed,
            .bytes_pulled = traffic.bytes_pulled};
  }

  using Clock = std::chrono::steady_clock;

  const TrainParts& parts_;
  const TrainOptions& options_;
  const int64_t first_step_;
  Clock::time_point begin_ = Clock::now();  // later by the time spent on evaluations
  RecentMean loss_;
  RecentMean accuracy_;
  int64_t samples_ = 0;  // of this worker
  std::vector<Evaluation> evaluations_;
};

}  // namespace

absl::StatusOr<TrainResult> Train(const TrainParts& parts, const TrainOptions& options) {
  return Loop(parts, options).Run();
}

}  // namespace syncline::fashion_mnist
