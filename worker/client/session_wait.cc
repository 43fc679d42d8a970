// The calls of a session that wait for other processes, until a deadline or Cancel.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "worker/client/session_impl.h"

namespace syncline {

bool Session::Impl::AwaitChange(const Call& call) {
  if (IsOver() || IsCancelled(call)) return false;
  return changed_.WaitUntil(mutex_, clock_, call.deadline);
}

absl::Status Session::Impl::EndedEarly(const Call& call, const std::string& what) const {
  if (IsOver()) return CheckRunning();
  if (IsCancelled(call)) {
    return absl::CancelledError(absl::StrCat("cancelled before ", what));
  }
  return absl::DeadlineExceededError(absl::StrCat("timed out before ", what));
}

void Session::Impl::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  ++cancels_;
  changed_.SignalAll();
}

void Session::Impl::Uncancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = false;
}

// ---- Weights ----

// Wakes callers only if the tensor that they wait for is ready, because a wake-up costs
// more than a small tensor.
void Session::Impl::OnReady(const ExchangeReady& is_ready) {
  absl::MutexLock lock(&mutex_);
  Tensor& tensor = tensors_[is_ready.tensor];
  if (is_ready.step && tensor.version < *is_ready.step) GoOnAt(*is_ready.step);
  if (std::exchange(tensor.ready, true)) return;
  --unready_;
  if (tensor.is_undeclared && tensor.version < step_) {
    SkipUndeclared();
    data_plane_->Flush();
  }
  if (AllReady()) phases_.Landed();
  if (tensor.waiters > 0 || AllReady()) changed_.SignalAll();
}

void Session::Impl::MakeUnready(Tensor& tensor) {
  tensor.landed = false;
  if (std::exchange(tensor.ready, false)) ++unready_;
}

void Session::Impl::LandIn(TensorId id) {
  Tensor& tensor = tensors_[id];
  if (std::exchange(tensor.landed, true) || tensor.view.empty()) return;
  const std::span<const float> weights = tensor.view;
  const MemoryView memory(tensor.memory, tensor.elements);
  mutex_.Unlock();
  {
    const PhaseMeter::Work decodes(phases_, WorkerPhase::kDecode);
    memory.Write(weights);
  }
  mutex_.Lock();
}

void Session::Impl::Flush() {
  if (data_plane_ != nullptr) data_plane_->Flush();
}

// While the session ends it still waits, because the tensor's memory may be in use.
absl::Status Session::Impl::WaitFor(TensorId id, const Call& call) {
  ++waiters_;
  ++tensors_[id].waiters;
  if (!tensors_[id].ready) {
    const PhaseMeter::Wait wait(phases_);
    Flush();
    while (!tensors_[id].ready && AwaitChange(call)) {
    }
  }
  --tensors_[id].waiters;
  --waiters_;
  SYNCLINE_RETURN_IF_ERROR(status_);
  if (tensors_[id].ready) {
    LandIn(id);
    if (Device* const device = tensors_[id].memory.device) {
      SYNCLINE_RETURN_IF_ERROR(device->status());
    }
    return CheckRunning();
  }
  return EndedEarly(
      call, absl::StrCat("tensor '", tensors_[id].options.name,
                         "' had the weights of step ", tensors_[id].version, " of ",
                         members_, " members; call Wait again to go on waiting"));
}

absl::Status Session::Impl::Wait(TensorId id, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  if (phase_ == Phase::kDeclaring) return CheckRunning();
  if (id >= tensors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no tensor number ", id));
  }
  if (tensors_[id].is_undeclared) SYNCLINE_RETURN_IF_ERROR(CheckDeclared(id));
  return WaitFor(id, Begin(timeout));
}

absl::Status Session::Impl::WaitAll(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  if (phase_ == Phase::kDeclaring) return CheckRunning();
  return WaitForAll(Begin(timeout));
}

// First waits for the tensors whose weights must be converted from FP32, so that this
// happens while the other tensors arrive.
absl::Status Session::Impl::WaitForAll(const Call& call) {
  for (TensorId id = 0; id < tensors_.size(); ++id) {
    if (tensors_[id].view.empty()) continue;
    SYNCLINE_RETURN_IF_ERROR(WaitFor(id, call));
  }
  ++waiters_;
  if (!AllReady()) {
    const PhaseMeter::Wait wait(phases_);
    Flush();
    while (!AllReady() && AwaitChange(call)) {
    }
  }
  --waiters_;
  for (TensorId id = 0; id < tensors_.size(); ++id) {
    SYNCLINE_RETURN_IF_ERROR(WaitFor(id, call));
  }
  return absl::OkStatus();
}

void Session::Impl::Settle() {
  if (!may_be_behind()) return;
  for (TensorId id = 0; id < tensors_.size(); ++id) {
    Tensor& tensor = tensors_[id];
    if (!tensor.keeps_pace() || !tensor.ready) continue;
    MakeUnready(tensor);
    data_plane_->Settle(id);
  }
}

// ---- Averages ----

absl::Status Session::Impl::PullAverage(TensorId id, std::span<float> out,
                                        absl::Duration timeout) {
  return Fetch(id, std::nullopt, out, timeout).status();
}

absl::StatusOr<uint64_t> Session::Impl::PullState(StateArray array, std::span<float> out,
                                                  absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckRunning());
    if (const auto mode = ParseSyncMode(options_.training.mode);
        mode.ok() && mode->is_async()) {
      return absl::FailedPreconditionError(
          "in mode asp the optimizer's state belongs to no single step: servers keep "
          "applying pushes while it is read; use the servers' checkpoints "
          "(docs/checkpoints.md), or mode ssp or bsp");
    }
    if (array.tensor < tensors_.size()) {
      SYNCLINE_RETURN_IF_ERROR(CheckDeclared(array.tensor));
      const Call call = Begin(timeout);
      SYNCLINE_RETURN_IF_ERROR(SettleOne(array.tensor, call));
      timeout = call.deadline - clock_.Now();
    }
  }
  return Fetch(array.tensor, array.number, out, timeout);
}

absl::Status Session::Impl::SettleOne(TensorId id, const Call& call) {
  SYNCLINE_RETURN_IF_ERROR(WaitFor(id, call));
  Tensor& tensor = tensors_[id];
  if (!has_delays() || !tensor.keeps_pace()) return absl::OkStatus();
  MakeUnready(tensor);
  data_plane_->Settle(id);
  return WaitFor(id, call);
}

absl::StatusOr<uint64_t> Session::Impl::Fetch(TensorId id, std::optional<uint32_t> array,
                                              std::span<float> out,
                                              absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  if (id >= tensors_.size() || out.size() != tensors_[id].elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no tensor number ", id, " of ", out.size(), " elements"));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckDeclared(id));
  const Call call = Begin(timeout);
  ++waiters_;
  while (average_under_way_ && AwaitChange(call)) {
  }
  const bool is_asked = !IsOver() && !average_under_way_;
  if (is_asked) {
    average_under_way_ = average_is_wanted_ = true;
    array ? data_plane_->PullState(id, *array) : data_plane_->PullAverage(id);
  }
  while (is_asked && !averaged_ && AwaitChange(call)) {
  }
  --waiters_;
  std::optional<ExchangeAveraged> answer;
  if (is_asked) {
    answer = std::exchange(averaged_, std::nullopt);
    average_is_wanted_ = false;
    if (answer) average_under_way_ = false;
    changed_.SignalAll();
  }
  if (!answer) {
    return EndedEarly(call, array ? "the optimizer's state came" : "the averages came");
  }
  SYNCLINE_RETURN_IF_ERROR(answer->status);
  std::ranges::copy(answer->weights, out.begin());
  return answer->updates;
}

void Session::Impl::OnAveraged(ExchangeAveraged averaged) {
  absl::MutexLock lock(&mutex_);
  if (average_is_wanted_) {
    averaged_ = std::move(averaged);
  } else {
    average_under_way_ = false;
  }
  changed_.SignalAll();
}

// ---- Barrier ----

uint64_t Session::Impl::EnterBarrier() {
  if (!left_barriers_.empty())
    return left_barriers_.extract(left_barriers_.begin()).value();
  v1::MemberMessage message;
  message.mutable_barrier_entered()->set_barrier(barriers_entered_);
  link_->Send(message);
  return barriers_entered_++;
}

absl::Status Session::Impl::Barrier(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  const Call call = Begin(timeout);
  // The servers must hold all pushes before any member fetches the newest weights.
  if (may_be_behind()) SYNCLINE_RETURN_IF_ERROR(WaitForAll(call));
  const uint64_t barrier = EnterBarrier();
  ++waiters_;
  {
    const PhaseMeter::Wait wait(phases_);
    while (barriers_released_ <= barrier && AwaitChange(call)) {
    }
  }
  --waiters_;
  if (barriers_released_ > barrier) {
    SYNCLINE_RETURN_IF_ERROR(CheckRunning());
    Settle();
    return may_be_behind() ? WaitForAll(call) : absl::OkStatus();
  }
  if (!IsOver()) left_barriers_.insert(barrier);
  return EndedEarly(call,
                    "every member was in the barrier; call it again to go on waiting");
}

}  // namespace syncline
