// The network and its training step, on LibTorch. The only headers of torch are in
// model.cc and local_exchange.cc: they are heavy, and its macros are not ours.
//
//   1x28x28 - conv 5x5/2, 32 - relu - conv 3x3, 64 - maxpool 2 - relu - full 256 - relu -
//   full 10
//
// About 0.83 M parameters; with 8,000 hidden units in place of 256, 25.2 M. Weights are
// FP32. With Precision::kBf16 the forward and backward passes run under autocast:
// convolutions in BF16, the loss in FP32. Runs on CUDA where LibTorch has it, otherwise
// on one CPU thread. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "worker/examples/fashion_mnist/dataset.h"
#include "worker/examples/fashion_mnist/exchange.h"

namespace syncline::fashion_mnist {

enum class Precision { kFp32, kBf16 };

struct ModelOptions {
  Precision precision = Precision::kFp32;
  uint64_t seed = 1;     // of the initial weights
  int threads = 1;       // that LibTorch may use
  int64_t hidden = 256;  // units of the first full layer
};

struct BatchResult {
  double loss = 0;      // mean over the batch
  int64_t correct = 0;  // samples whose class was guessed
};

class Model {
 public:
  explicit Model(const ModelOptions& options);
  ~Model();

  // Front layers first. The values live as long as the model.
  std::span<const Parameter> parameters() const;

  // Forward and backward over the samples numbered `batch`. Waits for each weight just
  // before its layer needs it and pushes each gradient as soon as backward made it, so
  // that the exchange of the other layers goes on meanwhile. Returns the first error of
  // `exchange`, or INTERNAL with LibTorch's message.
  absl::StatusOr<BatchResult> TrainStep(const Samples& samples,
                                        std::span<const uint32_t> batch,
                                        Exchange& exchange);

  // How many of `samples` the present weights classify rightly.
  absl::StatusOr<int64_t> CountCorrect(const Samples& samples);

  // "cpu" or "cuda".
  std::string device() const;

  // Whether BF16 is multiplied by the hardware. Elsewhere LibTorch emulates it, and takes
  // ten times as long as for FP32.
  static bool HasBf16Arithmetic();

 private:
  class Network;
  std::unique_ptr<Network> network_;
};

}  // namespace syncline::fashion_mnist
