#include "cli/bench/worker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/bench/sum_check.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/compression/transfer.h"
#include "nlohmann/json.hpp"
#include "worker/client/memory_view.h"
#include "worker/client/session.h"

namespace syncline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLearningRate = 1e-3;
constexpr double kMomentum = 0.9;
constexpr float kInitialWeight = 1.0f;

// Memory of a tensor, in the program's type.
struct BenchMemory {
  std::shared_ptr<void> data;
  size_t elements = 0;
  DType dtype = DType::kF32;
  Device* device = nullptr;  // null: the host

  MemoryView view() const { return {{data.get(), dtype, device}, elements}; }
  void Fill(float value) const { view().Write(std::vector<float>(elements, value)); }
  std::vector<float> Values() const {
    std::vector<float> values(elements);
    Buffer copy;
    Widen({.data = BytesOnHost(view(), copy).data(), .dtype = dtype}, values);
    return values;
  }
};

BenchMemory OrdinaryMemory(size_t elements, DType dtype) {
  auto bytes = std::make_shared<std::vector<std::byte>>(elements * DTypeBytes(dtype));
  return {{bytes, bytes->data()}, elements, dtype};
}

absl::StatusOr<BenchMemory> MemoryOf(Device& device, size_t elements, DType dtype) {
  auto buffer = std::make_shared<DeviceBuffer>(device, DeviceBuffer::Place::kDevice);
  if (!buffer->Reserve(elements * DTypeBytes(dtype))) return device.status();
  return BenchMemory{{buffer, buffer->data()}, elements, dtype, &device};
}

struct Model {
  std::vector<BenchMemory> weights;
  std::vector<BenchMemory> gradients;
  std::vector<TensorId> ids;
};

// Returns the value of every element of this worker's gradient: 0.25 * (rank + 1). The
// servers take the mean over all ranks.
float GradientOf(uint32_t rank) { return 0.25f * static_cast<float>(rank + 1); }

absl::StatusOr<Model> MakeModel(const BenchWorkerOptions& options, Session& session) {
  Model model;
  SYNCLINE_ASSIGN_OR_RETURN(const DType dtype, BenchDType(options.dtype));
  Device* device = nullptr;
  if (options.on_gpu) {
    SYNCLINE_ASSIGN_OR_RETURN(device, Device::Open(0));
  }
  const auto allocate = [&](size_t elements) -> absl::StatusOr<BenchMemory> {
    if (device != nullptr) return MemoryOf(*device, elements, dtype);
    return OrdinaryMemory(elements, dtype);
  };
  uint64_t rest = options.bytes / sizeof(float);
  while (rest > 0) {
    const uint64_t elements =
        std::min(rest, std::max<uint64_t>(options.tensor_bytes / sizeof(float), 1));
    SYNCLINE_ASSIGN_OR_RETURN(model.weights.emplace_back(), allocate(elements));
    model.weights.back().Fill(kInitialWeight);
    SYNCLINE_ASSIGN_OR_RETURN(model.gradients.emplace_back(), allocate(elements));
    if (options.lends) {
      SYNCLINE_ASSIGN_OR_RETURN(model.gradients.back().data,
                                session.AllocateTensor(elements, dtype));
    }
    model.gradients.back().Fill(GradientOf(session.rank()));
    rest -= elements;
  }
  return model;
}

absl::Status DeclareAll(Session& session, Model& model) {
  for (size_t i = 0; i < model.weights.size(); ++i) {
    BenchMemory& weights = model.weights[i];
    SYNCLINE_ASSIGN_OR_RETURN(
        model.ids.emplace_back(),
        session.Declare(  // a matrix: vectors are not compressed
            {.name = absl::StrCat("tensor", i), .shape = {1, weights.elements}},
            TensorMemory{weights.data.get(), weights.dtype, weights.device}));
  }
  return absl::OkStatus();
}

// Steps with fewer workers are different steps, so neither their times nor their sums are
// reported.
absl::Status CheckMembers(const Session& session) {
  const uint32_t members = session.Stats().members;
  if (members >= session.world_size()) return absl::OkStatus();
  return WithFailure(
      absl::UnavailableError(absl::StrCat(
          "only ", members, " of ", session.world_size(), " workers are left at step ",
          session.step(),
          ": the others died or were dropped, as their logs and the coordinator's say; "
          "results with fewer workers are not reported: run the benchmark again")),
      Failure::kRetryable);
}

absl::Status Step(Session& session, const Model& model) {
  for (size_t i = 0; i < model.ids.size(); ++i) {
    const BenchMemory& gradient = model.gradients[i];
    SYNCLINE_RETURN_IF_ERROR(session.PushPull(
        model.ids[i],
        ConstTensorMemory{gradient.data.get(), gradient.dtype, gradient.device}, 1));
  }
  return session.WaitAll();
}

// Returns the weight after `steps` equal gradients, in float64 (Loshchilov & Hutter 2019;
// torch's SGD).
double ExpectedWeight(const std::string& optimizer, double gradient, int steps) {
  double weight = kInitialWeight;
  double first = 0, second = 0;
  for (int t = 1; t <= steps; ++t) {
    if (optimizer == "sgd") {
      first = t == 1 ? gradient : kMomentum * first + gradient;
      weight -= kLearningRate * first;
      continue;
    }
    first = 0.9 * first + 0.1 * gradient;
    second = 0.999 * second + 0.001 * gradient * gradient;
    const double mean = first / (1 - std::pow(0.9, t));
    const double deviation = std::sqrt(second / (1 - std::pow(0.999, t)));
    weight -= kLearningRate * mean / (deviation + 1e-8);
  }
  return weight;
}

// Returns whether tensors of equal values, as this benchmark has, arrive unchanged. Other
// codecs send some values in later steps, or are right only in the mean.
bool SendsAllValues(const std::string& codec) {
  constexpr std::string_view kNames[] = {"fp32", "bf16", "fp16", "int8", "onebit"};
  return std::ranges::count(kNames, codec.substr(0, codec.find(':'))) > 0;
}

// All gradients are positive, so weights must fall, even if values are still missing.
absl::Status CheckDirection(const BenchWorkerOptions& options, const Model& model) {
  double sum = 0;
  size_t elements = 0;
  for (const BenchMemory& tensor : model.weights) {
    for (const float weight : tensor.Values()) sum += weight;
    elements += tensor.elements;
  }
  const double mean = sum / static_cast<double>(elements);
  // A few steps may change less than a narrow type, or a codec's threshold, can
  // represent.
  const bool must_move = options.dtype == "fp32" && CheckedOf(options.codec) == "sums";
  if (must_move ? mean < kInitialWeight : mean <= kInitialWeight) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the weights' mean is ", mean, " after ",
                   options.warmup + options.steps, " steps of positive gradients, from ",
                   kInitialWeight, ": the benchmark's result is wrong"));
}

absl::Status CheckWeights(const BenchWorkerOptions& options, const Model& model,
                          uint32_t workers) {
  if (!SendsAllValues(options.codec)) return CheckDirection(options, model);
  double gradient = 0;
  for (uint32_t rank = 0; rank < workers; ++rank) gradient += GradientOf(rank) / workers;
  const double expected =
      ExpectedWeight(options.optimizer, gradient, options.warmup + options.steps);
  // FP32 rounds once per step; BF16 keeps 8 bits of the published weights.
  const bool is_exact = options.codec == "fp32" && options.dtype == "fp32";
  const double tolerance =
      is_exact ? 1e-5 + 1e-7 * (options.warmup + options.steps) : 8e-3;
  for (const BenchMemory& tensor : model.weights) {
    for (const float weight : tensor.Values()) {
      if (std::abs(weight - expected) <= tolerance * std::abs(expected)) continue;
      return absl::DataLossError(absl::StrCat(
          "a weight is ", weight, " after ", options.warmup + options.steps,
          " steps, expected ", expected, ": the benchmark's result is wrong"));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteReport(const BenchWorkerOptions& options,
                         const std::vector<double>& seconds, const SessionStats& stats) {
  std::ofstream file(options.report);
  file << nlohmann::json{{"seconds", seconds},
                         {"bytes_pushed", stats.bytes_pushed},
                         {"bytes_pulled", stats.bytes_pulled},
                         {"checked", CheckedOf(options.codec)}};
  file.close();
  if (file.fail())
    return absl::UnavailableError(absl::StrCat("cannot write ", options.report));
  return absl::OkStatus();
}

SessionOptions Configured(SessionOptions session, const BenchWorkerOptions& options) {
  session.training.optimizer = {.name = options.optimizer,
                                .values = {{"lr", kLearningRate}, {"weight_decay", 0}}};
  if (options.optimizer == "sgd") {
    session.training.optimizer.values["momentum"] = kMomentum;
  }
  session.settings.push_codec = options.codec;
  session.settings.publish_codec = options.codec;
  return session;
}

// Returns the seconds of each step. Members are counted only while all must be present:
// none leaves before the last step, or between two barriers.
absl::StatusOr<std::vector<double>> TimeSteps(const BenchWorkerOptions& options,
                                              Session& session, const Model& model) {
  std::vector<double> seconds;
  for (int i = 0; i < options.warmup + options.steps; ++i) {
    SYNCLINE_RETURN_IF_ERROR(CheckMembers(session));
    const Clock::time_point begin = Clock::now();
    SYNCLINE_RETURN_IF_ERROR(Step(session, model));
    if (i < options.warmup) continue;
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  SYNCLINE_RETURN_IF_ERROR(session.Barrier());
  SYNCLINE_RETURN_IF_ERROR(CheckMembers(session));
  SYNCLINE_RETURN_IF_ERROR(session.Barrier());
  return seconds;
}

// Runs a second job: plain SGD on one tensor that is large enough to be compressed.
absl::Status CheckSumOf(const Transfer& transfer, SessionOptions options) {
  constexpr uint64_t kColumns = 1024;
  const uint64_t rows =
      std::max<uint64_t>(16, (transfer.what.min_elements + kColumns - 1) / kColumns);
  options.job += "-check";
  options.training.optimizer = {.name = "sgd", .values = {{"lr", kSumCheckLearningRate}}};
  SYNCLINE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Session::Create(options));
  std::vector<float> weights(rows * kColumns);
  SYNCLINE_ASSIGN_OR_RETURN(
      const TensorId id,
      session->Declare({.name = "checked", .shape = {rows, kColumns}}, weights));
  SYNCLINE_RETURN_IF_ERROR(session->Start());
  const SumCheck check = {.rank = session->rank(),
                          .workers = session->world_size(),
                          .ratio = transfer.selector->kind == SelectorKind::kBlocks
                                       ? 1
                                       : transfer.selector->ratio};
  SYNCLINE_RETURN_IF_ERROR(
      CheckSum(check, weights, [&](std::span<const float> gradient) -> absl::Status {
        SYNCLINE_RETURN_IF_ERROR(CheckMembers(*session));
        return session->PushPullAndWait(id, gradient, 1);
      }));
  return session->Leave();
}

}  // namespace

std::string CheckedOf(const std::string& codec) {
  if (SendsAllValues(codec)) return "weights";
  const auto transfer = ParseTransfer(codec);
  return transfer.ok() && PromisesSum(*transfer) ? "sums" : "direction";
}

absl::StatusOr<DType> BenchDType(const std::string& name) {
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBf16;
  if (name == "fp16") return DType::kF16;
  return WithFailure(absl::InvalidArgumentError(absl::StrCat(
                         "'", name, "' is not an element type; fp32, bf16 and fp16 are")),
                     Failure::kUsage);
}

absl::Status RunBenchWorker(const BenchWorkerOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(SessionOptions session_options, SessionOptions::FromEnv());
  session_options = Configured(std::move(session_options), options);
  SYNCLINE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Session::Create(session_options));
  SYNCLINE_ASSIGN_OR_RETURN(Model model, MakeModel(options, *session));
  SYNCLINE_RETURN_IF_ERROR(DeclareAll(*session, model));
  SYNCLINE_RETURN_IF_ERROR(session->Start());
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                            TimeSteps(options, *session, model));
  const SessionStats stats = session->Stats();
  SYNCLINE_RETURN_IF_ERROR(session->Leave());
  SYNCLINE_RETURN_IF_ERROR(CheckWeights(options, model, session_options.world_size));
  if (CheckedOf(options.codec) == "sums") {
    SYNCLINE_ASSIGN_OR_RETURN(const Transfer transfer, ParseTransfer(options.codec));
    SYNCLINE_RETURN_IF_ERROR(CheckSumOf(transfer, session_options));
  }
  if (session_options.rank == 0) return WriteReport(options, seconds, stats);
  return absl::OkStatus();
}

}  // namespace syncline
