#include "worker/examples/fashion_mnist/local_exchange.h"

#include <torch/torch.h>

#include <vector>

namespace syncline::fashion_mnist {
namespace {

using torch::optim::AdamWOptions;

class LocalExchange final : public Exchange {
 public:
  LocalExchange(std::span<const Parameter> parameters, double weight_decay)
      : weights_(Wrap(parameters)),
        optimizer_(weights_, AdamWOptions().weight_decay(weight_decay)) {}

  int64_t step() const override { return step_; }

  absl::Status BeginStep(const StepSettings& settings) override {
    for (auto& group : optimizer_.param_groups()) {
      static_cast<AdamWOptions&>(group.options()).lr(settings.learning_rate);
    }
    return absl::OkStatus();
  }

  absl::Status WaitForWeights(size_t /*parameter*/) override { return absl::OkStatus(); }

  absl::Status PushGradient(size_t parameter, std::span<const float> gradient) override {
    torch::Tensor& weight = weights_[parameter];
    weight.mutable_grad() =
        torch::from_blob(const_cast<float*>(gradient.data()), weight.sizes()).clone();
    return absl::OkStatus();
  }

  absl::Status EndStep() override {
    optimizer_.step();
    optimizer_.zero_grad();
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

  std::vector<torch::Tensor> weights_;
  torch::optim::AdamW optimizer_;
  int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Exchange> MakeLocalExchange(std::span<const Parameter> parameters,
                                            double weight_decay) {
  return std::make_unique<LocalExchange>(parameters, weight_decay);
}

}  // namespace syncline::fashion_mnist
