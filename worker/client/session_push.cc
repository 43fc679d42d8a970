// The part of a session that pushes: gradients, their sums, and steps without a gradient.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "comm/transport/message.h"
#include "worker/client/job_request.h"
#include "worker/client/session_impl.h"

namespace syncline {

absl::StatusOr<std::shared_ptr<void>> Session::Impl::AllocateTensor(size_t elements,
                                                                    DType dtype) {
  if (elements > kMaxTensorElements) {
    return absl::InvalidArgumentError(absl::StrCat("memory for a gradient of ", elements,
                                                   " elements; a tensor has at most ",
                                                   kMaxTensorElements));
  }
  const size_t bytes = elements * DTypeBytes(dtype);
  std::shared_ptr<void> memory = arena_->AllocateTensor(bytes);
  if (memory != nullptr) return memory;
  return absl::ResourceExhaustedError(absl::StrCat(
      "the system did not provide ", bytes,
      " bytes of shared memory (shmget: ", strerror(errno),
      "); look at `ipcs -lm` and the memory limit of the container, or push from "
      "ordinary "
      "memory"));
}

void Session::Impl::BeginAt(uint64_t step) {
  step_ = step;
  to_begin_ = 0;
  for (Tensor& tensor : tensors_) {
    tensor.version = step;
    if (tensor.keeps_pace()) ++to_begin_;
  }
}

void Session::Impl::GoOnAt(uint64_t step) {
  if (step > step_) BeginAt(step);
}

bool Session::Impl::IsBetweenSteps() const {
  return std::ranges::all_of(tensors_, [step = step_](const Tensor& tensor) {
    return !tensor.keeps_pace() || tensor.version == step;
  });
}

absl::Status Session::Impl::CheckDeclared(TensorId id) const {
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  if (id < tensors_.size()) {
    if (!tensors_[id].is_undeclared) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", tensors_[id].options.name,
                     "' was undeclared; it can be declared again in a new session"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no tensor number ", id, ", only ", tensors_.size(), " are declared"));
}

absl::Status Session::Impl::CheckTurn(TensorId id) const {
  SYNCLINE_RETURN_IF_ERROR(CheckDeclared(id));
  const Tensor& tensor = tensors_[id];
  const auto fails = [&](const auto&... what) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", tensor.options.name, "' ", what...));
  };
  if (tensor.options.frozen) return fails("is pushed, but was declared frozen");
  if (!tensor.ready)
    return fails("is pushed again before Wait, at step ", tensor.version);
  if (!tensor.keeps_pace() || tensor.version == step_) return absl::OkStatus();
  const auto slowest = std::ranges::find_if(tensors_, [step = step_](const Tensor& one) {
    return one.keeps_pace() && one.version == step;
  });
  return fails("is pushed for step ", tensor.version, " before tensor '",
               slowest->options.name, "' was pushed for step ", step_,
               "; every step takes a PushPull or a Skip of each trained tensor");
}

absl::Status Session::Impl::CheckPush(TensorId id, size_t elements,
                                      uint32_t samples) const {
  SYNCLINE_RETURN_IF_ERROR(CheckTurn(id));
  const Tensor& tensor = tensors_[id];
  const auto says = [&](const auto&... what) {
    return absl::StrCat("gradient of tensor '", tensor.options.name, "' ", what...);
  };
  if (elements != tensor.elements) {
    return absl::InvalidArgumentError(
        says("has ", elements, " elements, the tensor has ", tensor.elements));
  }
  if (samples == 0) {
    return absl::InvalidArgumentError(
        says("is the mean of 0 samples; at least 1 is needed, or a Skip"));
  }
  return absl::OkStatus();
}

bool Session::Impl::Accumulate(Tensor& tensor, ConstMemoryView& gradient,
                               uint32_t& samples) const {
  if (tensor.sum_pushes == 0) tensor.sum.assign(tensor.elements, 0.0f);
  if (samples > 0) {
    const absl::Status added =
        CodecOf(gradient.dtype())
            .DecodeAdd(gradient.bytes(), static_cast<float>(samples), tensor.sum);
    SYNCLINE_CHECK(added.ok());
  }
  tensor.sum_samples += samples;
  if (++tensor.sum_pushes < options_.training.accumulate_steps) return false;
  tensor.sum_pushes = 0;
  if (tensor.sum_samples == 0) return true;  // all pushes were skips
  const auto share = static_cast<float>(1.0 / static_cast<double>(tensor.sum_samples));
  for (float& value : tensor.sum) value *= share;
  gradient = tensor.sum;
  samples = static_cast<uint32_t>(
      std::min<uint64_t>(tensor.sum_samples, std::numeric_limits<uint32_t>::max()));
  tensor.sum_samples = 0;
  return true;
}

bool Session::Impl::Accumulates() const {
  return options_.training.accumulate_on == TrainingOptions::Accumulate::kWorker &&
         options_.training.accumulate_steps > 1;
}

void Session::Impl::Contribute(TensorId id, ConstMemoryView gradient, uint32_t samples) {
  Tensor& tensor = tensors_[id];
  if (Accumulates() && !Accumulate(tensor, gradient, samples)) return;
  MakeUnready(tensor);
  ++tensor.version;
  samples == 0 ? data_plane_->Skip(id) : data_plane_->Push(id, gradient, samples);
  step_samples_ = std::max(step_samples_, samples);
  if (!tensor.keeps_pace() || --to_begin_ > 0) return;
  ++step_;
  SkipUndeclared();
  data_plane_->Flush();
  samples_ += std::exchange(step_samples_, 0);
  phases_.Step(step_);
  to_begin_ = static_cast<size_t>(std::ranges::count_if(tensors_, &Tensor::keeps_pace));
}

absl::Status Session::Impl::PushPull(TensorId id, ConstMemoryView gradient,
                                     uint32_t samples) {
  Buffer copy;
  if (Device* const device = gradient.device(); device != nullptr && Accumulates()) {
    const ByteView bytes = BytesOnHost(gradient, copy);
    SYNCLINE_RETURN_IF_ERROR(device->status());
    gradient = {{bytes.data(), gradient.dtype()}, gradient.size()};
  }
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckPush(id, gradient.size(), samples));
  Contribute(id, gradient, samples);
  return absl::OkStatus();
}

absl::Status Session::Impl::PushPull(TensorId id, ConstTensorMemory gradient,
                                     uint32_t samples) {
  SYNCLINE_ASSIGN_OR_RETURN(const size_t elements, ElementsOf(id));
  if (gradient.data == nullptr && elements > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no gradient of tensor '", NameOf(id), "'"));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckPlace(id, gradient.device));
  return PushPull(id, ConstMemoryView(gradient, elements), samples);
}

// Fails if the gradient is on a GPU that does not hold the weights. It could be read
// there. But the caller has waited for one GPU only, and error feedback would have to
// move between the two.
absl::Status Session::Impl::CheckPlace(TensorId id, const Device* gradient) {
  absl::MutexLock lock(&mutex_);
  const Tensor& tensor = tensors_[id];
  if (gradient == nullptr || gradient == tensor.memory.device) return absl::OkStatus();
  const auto name = [](const Device* device) {
    return device == nullptr ? std::string("in host memory")
                             : absl::StrCat("on CUDA device ", device->ordinal());
  };
  return absl::InvalidArgumentError(
      absl::StrCat("gradient of tensor '", tensor.options.name, "' lies ", name(gradient),
                   ", its weights ", name(tensor.memory.device),
                   "; it must lie where the weights do, or in host memory"));
}

absl::Status Session::Impl::ScaleLearningRate(TensorId id, double factor) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckDeclared(id));
  const Tensor& tensor = tensors_[id];
  const auto of_tensor = [&](const auto&... what) {
    return absl::StrCat("the learning rate of tensor '", tensor.options.name, "' ",
                        what...);
  };
  if (!(factor >= 0 && factor <= kMaxRateFactor)) {
    return absl::InvalidArgumentError(of_tensor("cannot be multiplied by ", factor,
                                                "; allowed are 0 to ", kMaxRateFactor));
  }
  if (!TakesTensorsApart(options_.training)) {
    return absl::FailedPreconditionError(
        of_tensor("cannot differ between tensors with optimizer ",
                  options_.training.optimizer.name, "; use a schedule of the job"));
  }
  if (tensor.options.frozen) {
    return absl::FailedPreconditionError(
        of_tensor("has no effect: the tensor is frozen"));
  }
  if (!tensor.ready) {
    return absl::FailedPreconditionError(
        of_tensor("changes before Wait, at step ", tensor.version));
  }
  data_plane_->SetRateFactor(id, static_cast<float>(factor));
  return absl::OkStatus();
}

absl::Status Session::Impl::Skip(std::span<const TensorId> tensors) {
  absl::MutexLock lock(&mutex_);
  if (!TakesTensorsApart(options_.training)) {
    return absl::FailedPreconditionError(
        absl::StrCat("optimizer ", options_.training.optimizer.name,
                     " needs a gradient of every tensor at every step; push zeros"));
  }
  std::set<TensorId> different;
  for (const TensorId id : tensors) {
    SYNCLINE_RETURN_IF_ERROR(CheckTurn(id));
    if (!different.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensors_[id].options.name, "' is skipped twice"));
    }
  }
  for (const TensorId id : tensors) Contribute(id, {}, 0);
  return absl::OkStatus();
}

}  // namespace syncline
