#include "worker/examples/fashion_mnist/local_exchange.h"

#include <torch/torch.h>

#include <vector>

namespace syncline::fashion_mnist {
namespace {

class LocalExchange final : public Exchange {
 public:
  LocalExchange(std::span<const Parameter> parameters, const OptimizerSettings& settings)
      : weights_(Wrap(parameters)), optimizer_(MakeOptimizer(weights_, settings)) {}

  int64_t step() const override { return step_; }

  absl::Status WaitForWeights(size_t /*parameter*/) override { return absl::OkStatus(); }

  absl::Status PushGradient(size_t parameter, std::span<const float> gradient,
                            int64_t /*samples*/) override {
    torch::Tensor& weight = weights_[parameter];
    weight.mutable_grad() =
        torch::from_blob(const_cast<float*>(gradient.data()), weight.sizes());
    return absl::OkStatus();
  }

  absl::Status EndStep(const StepResult& /*result*/) override {
    optimizer_->step();
    ++step_;
    return absl::OkStatus();
  }

  Traffic traffic() const override { return {}; }

 private:
  static std::vector<torch::Tensor> Wrap(std::span<const Parameter> parameters) {
    std::vector<torch::Tensor> weights;
    for (const Parameter& parameter : parameters) {
      weights.push_back(
          torch::from_blob(parameter.values.data(), parameter.shape).requires_grad_());
    }
    return weights;
  }

  static std::unique_ptr<torch::optim::Optimizer> MakeOptimizer(
      const std::vector<torch::Tensor>& weights, const OptimizerSettings& settings) {
    const double lr = settings.option("lr", 1e-3);
    if (settings.optimizer.name == "sgd") {
      return std::make_unique<torch::optim::SGD>(
          weights, torch::optim::SGDOptions(lr)
                       .momentum(settings.option("momentum", 0))
                       .weight_decay(settings.option("weight_decay", 0)));
    }
    return std::make_unique<torch::optim::AdamW>(
        weights, torch::optim::AdamWOptions(lr).weight_decay(
                     settings.option("weight_decay", 0.01)));
  }

  std::vector<torch::Tensor> weights_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Exchange> MakeLocalExchange(std::span<const Parameter> parameters,
                                            const OptimizerSettings& settings) {
  return std::make_unique<LocalExchange>(parameters, settings);
}

}  // namespace syncline::fashion_mnist
