#include "worker/examples/fashion_mnist/model.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace syncline::fashion_mnist {
namespace {

constexpr int64_t kEvaluationBatch = 500;
// Of the training images, as fractions of white.
constexpr double kPixelMean = 0.2860;
constexpr double kPixelDeviation = 0.3530;

// Casts what profits from BF16 inside its scope. The weights stay FP32: autocast keeps
// cast copies of them until the scope ends.
class Autocast {
 public:
  Autocast(Precision precision, const torch::Device& device)
      : cuda_(device.is_cuda()), on_(precision == Precision::kBf16) {
    if (!on_) return;
    at::autocast::set_autocast_cpu_dtype(torch::kBFloat16);
    at::autocast::set_autocast_gpu_dtype(torch::kBFloat16);
    cuda_ ? at::autocast::set_enabled(true) : at::autocast::set_cpu_enabled(true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    cuda_ ? at::autocast::set_enabled(false) : at::autocast::set_cpu_enabled(false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool cuda_;
  const bool on_;
};

std::span<float> HostSpan(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

// Stored output channel, row, column, input channel: the order of "channels last", in
// which oneDNN and cuDNN compute, so that neither weights nor gradients are transposed at
// every step. The values are torch's default: uniform, up to 1 / sqrt(fan in).
torch::Tensor InitialWeights(int64_t outputs, int64_t side, int64_t inputs) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(side * side * inputs));
  return torch::empty({outputs, side, side, inputs}).uniform_(-bound, bound);
}

}  // namespace

class Model::Network {
 public:
  explicit Network(const ModelOptions& options)
      : precision_(options.precision),
        device_(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU) {
    at::set_num_threads(options.threads);
    torch::manual_seed(options.seed);
    AddLayer("conv1", InitialWeights(32, 5, 1));
    AddLayer("conv2", InitialWeights(64, 3, 32));
    AddLayer("full1", InitialWeights(options.hidden, 7, 64));
    AddLayer("full2", InitialWeights(kClasses, 1, options.hidden));
  }

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const torch::Device& device() const { return device_; }

  absl::StatusOr<BatchResult> TrainStep(const Samples& samples,
                                        std::span<const uint32_t> batch,
                                        Exchange& exchange) {
    exchange_ = &exchange;
    batch_size_ = static_cast<int64_t>(batch.size());
    status_ = absl::OkStatus();
    torch::Tensor labels = Labels(samples, batch);
    torch::Tensor logits;
    torch::Tensor loss;
    {
      const Autocast autocast(precision_, device_);
      logits = Forward(Images(samples, batch));
      loss = torch::nn::functional::cross_entropy(logits, labels);
    }
    if (status_.ok()) loss.backward();
    for (torch::Tensor& leaf : leaves_) leaf.mutable_grad().reset();
    exchange_ = nullptr;
    if (!status_.ok()) return status_;
    return BatchResult{.loss = loss.item<double>(), .correct = CountHits(logits, labels)};
  }

  int64_t CountCorrect(const Samples& samples) {
    const torch::NoGradGuard no_grad;
    const Autocast autocast(precision_, device_);
    std::vector<uint32_t> numbers(samples.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    int64_t correct = 0;
    for (int64_t begin = 0; begin < samples.size(); begin += kEvaluationBatch) {
      const auto batch = std::span(numbers).subspan(
          begin, std::min(kEvaluationBatch, samples.size() - begin));
      correct += CountHits(Forward(Images(samples, batch)), Labels(samples, batch));
    }
    return correct;
  }

 private:
  void AddLayer(const std::string& name, const torch::Tensor& weights) {
    AddParameter(absl::StrCat(name, ".weight"), weights);
    AddParameter(absl::StrCat(name, ".bias"), torch::zeros({weights.size(0)}));
  }

  void AddParameter(std::string name, const torch::Tensor& host) {
    const size_t index = leaves_.size();
    parameters_.push_back(
        {.name = std::move(name), .shape = host.sizes().vec(), .values = HostSpan(host)});
    hosts_.push_back(host);
    gradients_.push_back(torch::empty_like(host));
    // On a CPU the leaf is the host tensor itself, on a GPU a copy.
    leaves_.push_back(host.to(device_).detach().requires_grad_());
    leaves_.back().register_hook(
        [this, index](const torch::Tensor& gradient) { Push(index, gradient); });
  }

  // The parameter, with its newest values.
  const torch::Tensor& Use(size_t index) {
    if (exchange_ != nullptr && status_.ok()) status_ = exchange_->WaitForWeights(index);
    if (device_.is_cuda()) {
      const torch::NoGradGuard no_grad;
      leaves_[index].copy_(hosts_[index]);
    }
    return leaves_[index];
  }

  void Push(size_t index, const torch::Tensor& gradient) {
    if (exchange_ == nullptr || !status_.ok()) return;
    gradients_[index].copy_(gradient);
    status_ = exchange_->PushGradient(index, HostSpan(gradients_[index]), batch_size_);
  }

  torch::Tensor Convolve(const torch::Tensor& input, size_t layer, int64_t stride = 1,
                         int64_t padding = 0) {
    const torch::Tensor weights = Use(2 * layer).permute({0, 3, 1, 2});
    return torch::conv2d(input, weights, Use(2 * layer + 1), stride, padding);
  }

  // A fully connected layer. In FP32 it is a convolution as large as its input: the same
  // sums, but by oneDNN. Where LibTorch is built on the reference BLAS, as Debian's is,
  // its FP32 matrix product is ten times slower. Its BF16 product is oneDNN's, and the
  // fastest.
  torch::Tensor Connect(const torch::Tensor& input, size_t layer) {
    if (precision_ == Precision::kFp32) return Convolve(input, layer);
    const torch::Tensor weights = Use(2 * layer).flatten(1);
    const torch::Tensor& bias = Use(2 * layer + 1);
    const torch::Tensor flat = input.permute({0, 2, 3, 1}).flatten(1);
    return torch::linear(flat, weights, bias).unsqueeze(-1).unsqueeze(-1);
  }

  torch::Tensor Forward(const torch::Tensor& images) {
    torch::Tensor x = torch::relu(Convolve(images, 0, /*stride=*/2, /*padding=*/2));
    x = torch::relu(torch::max_pool2d(Convolve(x, 1, /*stride=*/1, /*padding=*/1), 2));
    x = torch::relu(Connect(x, 2));
    return Connect(x, 3).flatten(1).to(torch::kFloat32);
  }

  torch::Tensor Images(const Samples& samples, std::span<const uint32_t> batch) const {
    torch::Tensor bytes = torch::empty(
        {static_cast<int64_t>(batch.size()), 1, kImageSide, kImageSide}, torch::kUInt8);
    uint8_t* out = bytes.data_ptr<uint8_t>();
    for (const uint32_t sample : batch) {
      std::memcpy(out, &samples.images[sample * kImageBytes], kImageBytes);
      out += kImageBytes;
    }
    return bytes.to(device_)
        .to(torch::kFloat32)
        .sub_(255 * kPixelMean)
        .div_(255 * kPixelDeviation);
  }

  torch::Tensor Labels(const Samples& samples, std::span<const uint32_t> batch) const {
    torch::Tensor labels =
        torch::empty({static_cast<int64_t>(batch.size())}, torch::kInt64);
    std::ranges::transform(batch, labels.data_ptr<int64_t>(),
                           [&](uint32_t sample) { return samples.labels[sample]; });
    return labels.to(device_);
  }

  static int64_t CountHits(const torch::Tensor& logits, const torch::Tensor& labels) {
    return logits.argmax(1).eq(labels).sum().item<int64_t>();
  }

  const Precision precision_;
  const torch::Device device_;
  std::vector<Parameter> parameters_;
  std::vector<torch::Tensor> hosts_;   // what parameters_ points to
  std::vector<torch::Tensor> leaves_;  // what autograd differentiates by
  std::vector<torch::Tensor>
      gradients_;  // pushed, until the next step; autograd reuses its own
  // Only set during a training step, for the hooks.
  Exchange* exchange_ = nullptr;
  int64_t batch_size_ = 0;
  absl::Status status_;
};

namespace {

// LibTorch reports errors as exceptions; ours travel as Status.
absl::Status LibTorchError(const c10::Error& error) {
  return absl::InternalError(absl::StrCat("LibTorch: ", error.what_without_backtrace()));
}

}  // namespace

Model::Model(const ModelOptions& options)
    : network_(std::make_unique<Network>(options)) {}
Model::~Model() = default;

std::span<const Parameter> Model::parameters() const { return network_->parameters(); }

absl::StatusOr<BatchResult> Model::TrainStep(const Samples& samples,
                                             std::span<const uint32_t> batch,
                                             Exchange& exchange) {
  try {
    return network_->TrainStep(samples, batch, exchange);
  } catch (const c10::Error& error) {
    return LibTorchError(error);
  }
}

absl::StatusOr<int64_t> Model::CountCorrect(const Samples& samples) {
  try {
    return network_->CountCorrect(samples);
  } catch (const c10::Error& error) {
    return LibTorchError(error);
  }
}

bool Model::HasBf16Arithmetic() {
  if (torch::cuda::is_available()) return true;
  return __builtin_cpu_supports("avx512bf16") != 0;
}

std::string Model::device() const { return network_->device().str(); }

}  // namespace syncline::fashion_mnist
