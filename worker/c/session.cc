// Implements the sessions of syncline.h.
#include "worker/client/session.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/base/limits.h"
#include "comm/base/options.h"
#include "comm/base/status.h"
#include "worker/c/device.h"
#include "worker/c/handles.h"

using syncline::ConstTensorMemory;
using syncline::DType;
using syncline::ModelPass;
using syncline::Session;
using syncline::SessionStats;
using syncline::TensorMemory;
using syncline::TensorOptions;
using syncline::c::DeviceOf;
using syncline::c::Guarded;
using syncline::c::NullArgument;

namespace {

absl::Status CheckProcess(const syncline_session* session) {
  if (session == nullptr) return NullArgument("session");
  if (session->process == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the session was made by process ", session->process,
                   ", and this is a child of it; make a session of its own here"));
}

absl::StatusOr<absl::Duration> Timeout(int64_t timeout_ms) {
  if (timeout_ms == SYNCLINE_FOREVER) return absl::InfiniteDuration();
  if (timeout_ms >= 0) return absl::Milliseconds(timeout_ms);
  return absl::InvalidArgumentError(absl::StrCat(
      "timeout_ms is ", timeout_ms, ", but must be 0 or more, or SYNCLINE_FOREVER"));
}

absl::StatusOr<DType> DTypeOf(syncline_dtype dtype) {
  switch (static_cast<int>(dtype)) {
    case SYNCLINE_FLOAT32:
      return DType::kF32;
    case SYNCLINE_BFLOAT16:
      return DType::kBf16;
    case SYNCLINE_FLOAT16:
      return DType::kF16;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "dtype ", static_cast<int>(dtype), " is none of float32, bfloat16, float16"));
  }
}

// Runs `call` with the session. Fails in another process than the one that made it.
template <typename Call>
syncline_code With(const syncline_session* session, const Call& call) noexcept {
  return Guarded([&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(session));
    return call(*session->session);
  });
}

// The same for calls with a timeout.
template <typename Call>
syncline_code Waiting(const syncline_session* session, int64_t timeout_ms,
                      const Call& call) noexcept {
  return With(session, [&](Session& of) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration timeout, Timeout(timeout_ms));
    return call(of, timeout);
  });
}

// Returns a property of the session; `otherwise` if there is no usable session.
template <typename Value, typename Call>
Value Ask(const syncline_session* session, Value otherwise, const Call& call) noexcept {
  With(session, [&](Session& of) {
    otherwise = call(of);
    return absl::OkStatus();
  });
  return otherwise;
}

// Returns the fields that the caller knows; all others are zero.
absl::StatusOr<syncline_tensor> Read(const syncline_tensor* given) {
  if (given == nullptr) return NullArgument("tensor");
  syncline_tensor tensor = {};
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < offsetof(syncline_tensor, learning_rate_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("struct_size of a syncline_tensor is ", size,
                     ", but must be sizeof(syncline_tensor)"));
  }
  std::memcpy(&tensor, given, std::min(size, sizeof tensor));
  if (tensor.name == nullptr) return NullArgument("tensor.name");
  if (tensor.dimensions > 0 && tensor.shape == nullptr) {
    return NullArgument("tensor.shape");
  }
  if (tensor.dimensions > syncline::kMaxTensorDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", tensor.name, "' has ", tensor.dimensions,
                     " dimensions, allowed are ", syncline::kMaxTensorDimensions));
  }
  return tensor;
}

absl::StatusOr<TensorOptions> OptionsOf(const syncline_tensor& tensor) {
  TensorOptions options{.name = tensor.name, .shape = {}};
  if (tensor.dimensions > 0) {
    options.shape.assign(tensor.shape, tensor.shape + tensor.dimensions);
  }
  if (tensor.learning_rate_scale != 0) {
    options.learning_rate_scale = tensor.learning_rate_scale;
  }
  if (tensor.options != nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(options.options, syncline::ParseOptionList(tensor.options));
  }
  if (tensor.state != nullptr) options.state = tensor.state;
  options.frozen = tensor.frozen != 0;
  return options;
}

}  // namespace

syncline_code syncline_session_create(const syncline_options* options,
                                      syncline_session** out) {
  return Guarded([&]() -> absl::Status {
    if (options == nullptr) return NullArgument("options");
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_ASSIGN_OR_RETURN(auto session, Session::Create(options->values));
    *out = new syncline_session(std::move(session));
    return absl::OkStatus();
  });
}

void syncline_session_free(syncline_session* session) {
  // In a child process the session's threads do not exist, so it cannot be ended.
  if (session == nullptr || !CheckProcess(session).ok()) return;
  Guarded([&] {
    delete session;
    return absl::OkStatus();
  });
}

syncline_code syncline_declare(syncline_session* session, const syncline_tensor* tensor,
                               uint32_t* id) {
  return With(session, [&](Session& of) -> absl::Status {
    if (id == nullptr) return NullArgument("id");
    SYNCLINE_ASSIGN_OR_RETURN(const syncline_tensor given, Read(tensor));
    SYNCLINE_ASSIGN_OR_RETURN(const TensorOptions options, OptionsOf(given));
    SYNCLINE_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(given.dtype));
    SYNCLINE_ASSIGN_OR_RETURN(syncline::Device* const device, DeviceOf(given.device));
    SYNCLINE_ASSIGN_OR_RETURN(
        *id, of.Declare(options, TensorMemory{given.data, dtype, device}));
    return absl::OkStatus();
  });
}

syncline_code syncline_start(syncline_session* session, int64_t timeout_ms) {
  return Waiting(session, timeout_ms,
                 [](Session& of, absl::Duration timeout) { return of.Start(timeout); });
}

syncline_code syncline_push_pull(syncline_session* session, uint32_t tensor,
                                 const void* gradient, syncline_dtype dtype,
                                 uint32_t samples) {
  return syncline_push_pull_from(session, tensor, gradient, dtype, 0, samples);
}

syncline_code syncline_push_pull_from(syncline_session* session, uint32_t tensor,
                                      const void* gradient, syncline_dtype dtype,
                                      uint64_t device, uint32_t samples) {
  return With(session, [&](Session& of) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const DType type, DTypeOf(dtype));
    SYNCLINE_ASSIGN_OR_RETURN(syncline::Device* const where, DeviceOf(device));
    return of.PushPull(tensor, ConstTensorMemory{gradient, type, where}, samples);
  });
}

syncline_code syncline_memory_new(syncline_session* session, uint64_t elements,
                                  syncline_dtype dtype, syncline_memory** out) {
  return With(session, [&](Session& of) -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    *out = nullptr;
    SYNCLINE_ASSIGN_OR_RETURN(const DType type, DTypeOf(dtype));
    SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<void> data,
                              of.AllocateTensor(elements, type));
    *out = new syncline_memory{std::move(data)};
    return absl::OkStatus();
  });
}

void* syncline_memory_data(const syncline_memory* memory) {
  return memory == nullptr ? nullptr : memory->data.get();
}

void syncline_memory_free(syncline_memory* memory) { delete memory; }

syncline_code syncline_scale_learning_rate(syncline_session* session, uint32_t tensor,
                                           double factor) {
  return With(session, [&](Session& of) { return of.ScaleLearningRate(tensor, factor); });
}

syncline_code syncline_skip(syncline_session* session, const uint32_t* tensors,
                            size_t count) {
  return With(session, [&](Session& of) {
    if (tensors == nullptr && count > 0) return NullArgument("tensors");
    return of.Skip(std::span(tensors, count));
  });
}

syncline_code syncline_undeclare(syncline_session* session, uint32_t tensor) {
  return With(session, [&](Session& of) { return of.Undeclare(tensor); });
}

syncline_code syncline_wait(syncline_session* session, uint32_t tensor,
                            int64_t timeout_ms) {
  return Waiting(session, timeout_ms, [&](Session& of, absl::Duration timeout) {
    return of.Wait(tensor, timeout);
  });
}

syncline_code syncline_wait_all(syncline_session* session, int64_t timeout_ms) {
  return Waiting(session, timeout_ms,
                 [](Session& of, absl::Duration timeout) { return of.WaitAll(timeout); });
}

int syncline_is_ready(const syncline_session* session, uint32_t tensor) {
  return Ask(session, -1, [&](Session& of) {
    if (!of.ElementsOf(tensor).ok()) return -1;
    return of.IsReady(tensor) ? 1 : 0;
  });
}

int syncline_keeps_late(const syncline_session* session, uint32_t tensor) {
  return Ask(session, -1, [&](Session& of) {
    if (!of.ElementsOf(tensor).ok()) return -1;
    return of.KeepsLate(tensor) ? 1 : 0;
  });
}

void syncline_cancel(syncline_session* session) {
  With(session, [](Session& of) {
    of.Cancel();
    return absl::OkStatus();
  });
}

void syncline_uncancel(syncline_session* session) {
  With(session, [](Session& of) {
    of.Uncancel();
    return absl::OkStatus();
  });
}

syncline_code syncline_pull_average(syncline_session* session, uint32_t tensor,
                                    float* out, int64_t timeout_ms) {
  return Waiting(
      session, timeout_ms, [&](Session& of, absl::Duration timeout) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(const size_t elements, of.ElementsOf(tensor));
        if (out == nullptr && elements > 0) return NullArgument("out");
        return of.PullAverage(tensor, {out, elements}, timeout);
      });
}

syncline_code syncline_pull_state(syncline_session* session, uint32_t tensor,
                                  uint32_t array, float* out, uint64_t* updates,
                                  int64_t timeout_ms) {
  return Waiting(
      session, timeout_ms, [&](Session& of, absl::Duration timeout) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(const size_t elements, of.ElementsOf(tensor));
        if (out == nullptr && elements > 0) return NullArgument("out");
        SYNCLINE_ASSIGN_OR_RETURN(
            const uint64_t made,
            of.PullState({.tensor = tensor, .number = array}, {out, elements}, timeout));
        if (updates != nullptr) *updates = made;
        return absl::OkStatus();
      });
}

syncline_code syncline_set_state(syncline_session* session, uint32_t tensor,
                                 uint64_t updates, const float* const* arrays,
                                 size_t count) {
  return With(session, [&](Session& of) -> absl::Status {
    if (arrays == nullptr && count > 0) return NullArgument("arrays");
    SYNCLINE_ASSIGN_OR_RETURN(const size_t elements, of.ElementsOf(tensor));
    syncline::SeedState state{.updates = updates};
    for (size_t i = 0; i < count; ++i) {
      if (arrays[i] == nullptr && elements > 0) return NullArgument("an array");
      state.arrays.emplace_back(arrays[i], elements);
    }
    return of.SetState(tensor, state);
  });
}

uint64_t syncline_step(const syncline_session* session) {
  return Ask(session, uint64_t{0}, [](Session& of) { return of.step(); });
}
float syncline_loss_scale(const syncline_session* session) {
  return Ask(session, 1.0f, [](Session& of) { return of.loss_scale(); });
}
uint32_t syncline_rank(const syncline_session* session) {
  return Ask(session, 0u, [](Session& of) { return of.rank(); });
}
uint32_t syncline_world_size(const syncline_session* session) {
  return Ask(session, 0u, [](Session& of) { return of.world_size(); });
}

void syncline_report_loss(syncline_session* session, uint64_t step, double loss,
                          uint32_t samples) {
  With(session, [&](Session& of) {
    of.ReportLoss(step, loss, samples);
    return absl::OkStatus();
  });
}

int syncline_begin_pass(syncline_session* session, syncline_pass pass) {
  if (pass != SYNCLINE_FORWARD && pass != SYNCLINE_BACKWARD) return -1;
  return Ask(session, -1, [&](Session& of) {
    const bool is_traced = of.BeginPass(pass == SYNCLINE_FORWARD ? ModelPass::kForward
                                                                 : ModelPass::kBackward);
    return is_traced ? 1 : 0;
  });
}
void syncline_end_pass(syncline_session* session) {
  With(session, [](Session& of) {
    of.EndPass();
    return absl::OkStatus();
  });
}

syncline_code syncline_get_stats(const syncline_session* session, syncline_stats* stats) {
  return With(session, [&](Session& of) {
    if (stats == nullptr) return NullArgument("stats");
    const size_t size = stats->struct_size;
    if (size < sizeof size) {
      return absl::InvalidArgumentError(
          absl::StrCat("struct_size of a syncline_stats is ", size,
                       ", but must be sizeof(syncline_stats)"));
    }
    const SessionStats now = of.Stats();
    syncline_stats filled{.struct_size = size,
                          .bytes_pushed = now.bytes_pushed,
                          .bytes_pulled = now.bytes_pulled,
                          .resent_blocks = now.resent_blocks,
                          .epoch = now.epoch,
                          .members = now.members,
                          .steps = now.phases.steps,
                          .phase_seconds = {},
                          .late_steps = now.late_steps,
                          .slowest_rank = -1};
    if (now.slowest) filled.slowest_rank = *now.slowest;
    static_assert(std::size(filled.phase_seconds) == std::size(now.phases.seconds));
    std::ranges::copy(now.phases.seconds, filled.phase_seconds);
    std::memcpy(stats, &filled, std::min(size, sizeof filled));
    return absl::OkStatus();
  });
}

const char* syncline_device_codecs(const syncline_session* session) {
  thread_local std::string codecs;
  codecs.clear();
  With(session, [&](Session& of) {
    codecs = of.device_codecs();
    return absl::OkStatus();
  });
  return codecs.c_str();
}

syncline_code syncline_save_residuals(syncline_session* session, const char* path) {
  return With(session, [&](Session& of) {
    return path == nullptr ? NullArgument("path") : of.SaveResiduals(path);
  });
}

syncline_code syncline_restore_residuals(syncline_session* session, const char* path) {
  return With(session, [&](Session& of) {
    return path == nullptr ? NullArgument("path") : of.RestoreResiduals(path);
  });
}

syncline_code syncline_barrier(syncline_session* session, int64_t timeout_ms) {
  return Waiting(session, timeout_ms,
                 [](Session& of, absl::Duration timeout) { return of.Barrier(timeout); });
}

syncline_code syncline_leave(syncline_session* session) {
  return With(session, [](Session& of) { return of.Leave(); });
}
