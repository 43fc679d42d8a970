// A worker of the integration tests. It trains a small model whose gradients depend on
// its weights, prints its progress line by line, and ends with a checksum that must be
// the same in every worker.
//
//   joined step=S
//   step K            after each step
//   average=A         with --average: the first averaged weight
//   done step=K members=M checksum=C
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "comm/base/crc32c.h"
#include "comm/base/exit_codes.h"
#include "comm/base/log.h"
#include "comm/base/status.h"
#include "worker/client/session.h"

namespace syncline {
namespace {

struct Flags {
  uint64_t steps = 100;
  int step_ms = 5;  // time that a step "computes"
  uint64_t elements = 200000;
  bool wrong_shape = false;
  std::string optimizer = "adamw";
  double clip = 0;
  std::vector<std::string> options;  // optimizer options
  std::string loss_scaling;
  uint32_t accumulate_steps = 1;
  bool accumulate_here = false;
  bool same_weights = false;   // all ranks declare the same weights
  bool same_gradient = false;  // every step pushes the first gradient
  bool freeze = false;         // the last tensor is frozen
  bool average = false;
  std::string codec = "bf16";  // push codec
  std::string publish_codec = "bf16";
  uint64_t leave_at = ~uint64_t{0};  // it leaves before this step
  std::string restore;               // file from which error feedback is restored
  std::string save;                  // file to which error feedback is saved
  bool lend = false;                 // servers read gradients in place
  std::string leash;  // file with the first step that may not begin yet; empty: all may
};

struct Tensor {
  std::string name;
  std::vector<float> weights;
  std::shared_ptr<void> memory;  // the gradient's memory
  std::span<float> gradient;
  TensorId id = 0;
};

absl::Status MakeGradient(Tensor& tensor, size_t elements, Session* lender) {
  if (lender != nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(tensor.memory, lender->AllocateTensor(elements));
  } else {
    const auto own = std::make_shared<std::vector<float>>(elements);
    tensor.memory = {own, own->data()};
  }
  tensor.gradient = {static_cast<float*>(tensor.memory.get()), elements};
  return absl::OkStatus();
}

// Computes a gradient. Pushes of the same step differ, so that their sum can be checked.
void ComputeGradient(Tensor& tensor, const Session& session, uint64_t push) {
  const uint32_t rank = session.rank();
  for (size_t i = 0; i < tensor.weights.size(); ++i) {
    const float pull = static_cast<float>((i * 31 + push * 7 + rank) % 17) - 8.0f;
    tensor.gradient[i] = session.loss_scale() * (0.1f * tensor.weights[i] + 0.01f * pull);
  }
}

// Waits without a time limit until the test allows the step.
void WaitForLeave(const Flags& flags, uint64_t step) {
  const auto may_begin = [&] {
    uint64_t end = 0;
    return !(std::ifstream(flags.leash) >> end) || step < end;
  };
  while (!flags.leash.empty() && !may_begin()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

absl::Status Train(const Flags& flags, Session& session, std::vector<Tensor>& tensors) {
  const uint64_t first_push = session.step();
  for (uint64_t push = first_push; session.step() < flags.steps; ++push) {
    const uint64_t step = session.step();
    if (step >= flags.leave_at) return absl::OkStatus();
    WaitForLeave(flags, step);
    std::this_thread::sleep_for(std::chrono::milliseconds(flags.step_ms));
    for (Tensor& tensor : tensors) {
      if (flags.freeze && &tensor == &tensors.back()) continue;
      const bool is_computed = flags.same_gradient && push > first_push;
      if (!is_computed) ComputeGradient(tensor, session, push);
      SYNCLINE_RETURN_IF_ERROR(session.PushPull(tensor.id, tensor.gradient, 32));
    }
    session.ReportLoss(step, 1.0 / static_cast<double>(1 + step), 32);
    SYNCLINE_RETURN_IF_ERROR(session.WaitAll());
    // Servers no longer read the gradient, so overwriting it must not matter.
    for (Tensor& tensor : tensors) {
      if (flags.lend) std::ranges::fill(tensor.gradient, 1e6f);
    }
    std::printf("step %llu\n", static_cast<unsigned long long>(step));
    std::fflush(stdout);
  }
  return session.Barrier();
}

absl::Status Run(const Flags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(SessionOptions options, SessionOptions::FromEnv());
  options.training.optimizer = {
      .name = flags.optimizer, .values = {{"lr", flags.optimizer == "sgd" ? 0.1 : 1e-3}}};
  SYNCLINE_ASSIGN_OR_RETURN(const OptionValues given, ParseOptions(flags.options));
  options.training.optimizer.values = Merge(options.training.optimizer.values, given);
  options.training.gradient = {{"clip_global_norm", flags.clip}};
  options.training.loss_scaling = {.name = flags.loss_scaling};
  options.training.accumulate_steps = flags.accumulate_steps;
  options.training.accumulate_on = flags.accumulate_here
                                       ? TrainingOptions::Accumulate::kWorker
                                       : TrainingOptions::Accumulate::kServer;
  options.settings.push_codec = flags.codec;
  options.settings.publish_codec = flags.publish_codec;
  options.log = Logger::Create({});
  std::vector<Tensor> tensors(3);
  const uint64_t sizes[] = {flags.elements, 300, 1};
  const float first_weight =
      0.5f + (flags.same_weights ? 0 : static_cast<float>(options.rank));
  SYNCLINE_ASSIGN_OR_RETURN(const auto session, Session::Create(options));
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = absl::StrCat("tensor", i);
    tensors[i].weights.assign(sizes[i], first_weight);
    SYNCLINE_RETURN_IF_ERROR(
        MakeGradient(tensors[i], sizes[i], flags.lend ? session.get() : nullptr));
    const std::vector<uint64_t> shape = flags.wrong_shape
                                            ? std::vector<uint64_t>{sizes[i], 1}
                                            : std::vector<uint64_t>{sizes[i]};
    SYNCLINE_ASSIGN_OR_RETURN(
        tensors[i].id,
        session->Declare({.name = tensors[i].name,
                          .shape = shape,
                          .frozen = flags.freeze && i + 1 == tensors.size()},
                         tensors[i].weights));
  }
  SYNCLINE_RETURN_IF_ERROR(session->Start());
  std::printf("joined step=%llu\n", static_cast<unsigned long long>(session->step()));
  std::fflush(stdout);
  if (!flags.restore.empty()) {
    SYNCLINE_RETURN_IF_ERROR(session->RestoreResiduals(flags.restore));
  }
  SYNCLINE_RETURN_IF_ERROR(Train(flags, *session, tensors));
  if (!flags.save.empty()) SYNCLINE_RETURN_IF_ERROR(session->SaveResiduals(flags.save));
  uint32_t checksum = 0;
  for (const Tensor& tensor : tensors) {
    checksum = Crc32c(std::as_bytes(std::span<const float>(tensor.weights)), checksum);
  }
  if (flags.average) {
    std::vector<float> average(tensors[0].weights.size());
    SYNCLINE_RETURN_IF_ERROR(session->PullAverage(tensors[0].id, average));
    std::printf("average=%.6f weight=%.6f\n", average[0], tensors[0].weights[0]);
  }
  const SessionStats stats = session->Stats();
  std::printf("done step=%llu members=%u checksum=%08x\n",
              static_cast<unsigned long long>(session->step()), stats.members, checksum);
  return session->Leave();
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  CLI::App app("A worker of the integration tests");
  syncline::Flags flags;
  app.add_option("--steps", flags.steps);
  app.add_option("--step-ms", flags.step_ms);
  app.add_option("--elements", flags.elements);
  app.add_option("--optimizer", flags.optimizer);
  app.add_option("--clip", flags.clip);
  app.add_option("--option", flags.options);
  app.add_option("--loss-scaling", flags.loss_scaling);
  app.add_option("--accumulate", flags.accumulate_steps);
  app.add_flag("--accumulate-here", flags.accumulate_here);
  app.add_flag("--same-weights", flags.same_weights);
  app.add_flag("--same-gradient", flags.same_gradient);
  app.add_flag("--freeze", flags.freeze);
  app.add_flag("--average", flags.average);
  app.add_option("--codec", flags.codec);
  app.add_option("--publish-codec", flags.publish_codec);
  app.add_option("--leave-at", flags.leave_at);
  app.add_option("--restore", flags.restore);
  app.add_option("--save", flags.save);
  app.add_flag("--lend", flags.lend);
  app.add_option("--leash", flags.leash);
  app.add_flag("--wrong-shape", flags.wrong_shape);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = syncline::Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  return syncline::ExitCodeOf(status);
}
