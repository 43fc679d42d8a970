// Where gradients go and weights come from: the seam between the model, which knows
// LibTorch, and whatever applies the updates: the servers of a job (session_exchange.h)
// or, as an oracle for them, torch's optimizer in this process (local_exchange.h).
//
//   while (exchange.step() < total_steps) {
//     // WaitForWeights in the forward pass, PushGradient in the backward pass
//     model.TrainStep(batch, exchange);
//     exchange.EndStep({loss, samples});
//   }
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace syncline::fashion_mnist {

// One trainable tensor of the model. Its values live in host memory, FP32, in the order
// of `shape`; whoever applies updates writes them there.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  std::span<float> values;
};

// Bytes on the wire of this worker so far.
struct Traffic {
  int64_t bytes_pushed = 0;
  int64_t bytes_pulled = 0;
};

// The mean loss of a step over so many samples.
struct StepResult {
  double loss = 0;
  int64_t samples = 0;
};

// Parameters are named by their index in the model, front layers first. Used by one
// thread.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // The step to train next. A worker that joins a running job begins where the job is.
  virtual int64_t step() const = 0;

  // Returns once the values of the parameter hold all updates of the steps before. The
  // forward pass calls it just before it uses the parameter.
  virtual absl::Status WaitForWeights(size_t parameter) = 0;

  // Takes the gradient of the mean loss over `samples` samples, in the middle of the
  // backward pass: does not wait for the network. Until the next WaitForWeights returns,
  // `gradient` stays as it is and the parameter's values may change.
  virtual absl::Status PushGradient(size_t parameter, std::span<const float> gradient,
                                    int64_t samples) = 0;

  // After the backward pass: the step is complete.
  virtual absl::Status EndStep(const StepResult& result) = 0;

  virtual Traffic traffic() const = 0;
};

}  // namespace syncline::fashion_mnist
