// The training loop: the same for a job and for --local, which differ in the Exchange
// alone.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/examples/fashion_mnist/batch_plan.h"
#include "worker/examples/fashion_mnist/dataset.h"
#include "worker/examples/fashion_mnist/exchange.h"
#include "worker/examples/fashion_mnist/model.h"
#include "worker/examples/fashion_mnist/run_report.h"
#include "worker/examples/fashion_mnist/stop_signal.h"

namespace syncline::fashion_mnist {

struct TrainOptions {
  int64_t total_steps = 0;
  bool shows_progress = false;
  int world_size = 1;
  int64_t eval_steps = 0;  // CountCorrect of the test images every so many; 0: never
};

// What everything below borrows for the call.
struct TrainParts {
  Model& model;
  Exchange& exchange;
  BatchPlan& plan;
  const Dataset& dataset;
  const StopSignal& stop;
};

struct TrainResult {
  int64_t steps = 0;  // that this worker took part in
  double loss = 0;    // of this worker's batches, recent mean
  double seconds = 0;
  double samples_per_second = 0;  // of all workers, if none was lost
  std::vector<Evaluation> evaluations;
};

// Trains from exchange.step() to the last step and leaves the final weights in the model.
// CANCELLED: a stop signal came.
absl::StatusOr<TrainResult> Train(const TrainParts& parts, const TrainOptions& options);

}  // namespace syncline::fashion_mnist
