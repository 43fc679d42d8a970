// An Exchange with the servers of a Syncline job, which apply the optimizer to the FP32
// master weights they hold: the whole of what a training program needs of worker/client.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/client/session.h"
#include "worker/examples/fashion_mnist/exchange.h"
#include "worker/examples/fashion_mnist/optimizer_settings.h"

namespace syncline::fashion_mnist {

// How gradients and weights travel, as SessionOptions say it.
struct Codecs {
  std::string push;
  std::string publish;
};

class SessionExchange final : public Exchange {
 public:
  // Joins the job of the environment and returns with its weights in `parameters`, whose
  // values must outlive the exchange.
  static absl::StatusOr<std::unique_ptr<SessionExchange>> Join(
      std::span<const Parameter> parameters, const OptimizerSettings& optimizer,
      const Codecs& codecs);

  int rank() const { return static_cast<int>(session_->rank()); }
  int world_size() const { return static_cast<int>(session_->world_size()); }

  // The others go on without this worker.
  absl::Status Leave() { return session_->Leave(); }

  int64_t step() const override { return step_; }
  absl::Status WaitForWeights(size_t parameter) override;
  absl::Status PushGradient(size_t parameter, std::span<const float> gradient,
                            int64_t samples) override;
  absl::Status EndStep(const StepResult& result) override;
  Traffic traffic() const override;

 private:
  explicit SessionExchange(std::unique_ptr<Session> session);

  absl::Status Declare(std::span<const Parameter> parameters);

  std::unique_ptr<Session> session_;
  std::vector<TensorId> tensors_;  // of each parameter
  int64_t step_ = 0;
};

}  // namespace syncline::fashion_mnist
