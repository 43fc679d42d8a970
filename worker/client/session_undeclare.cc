// The part of a session that ends its part in single tensors.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "worker/client/job_request.h"
#include "worker/client/session_impl.h"

namespace syncline {

absl::Status Session::Impl::Undeclare(TensorId id) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckDeclared(id));
  Tensor& tensor = tensors_[id];
  const auto fails = [&](const auto&... what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor '", tensor.options.name, "' cannot be undeclared ", what...));
  };
  SYNCLINE_ASSIGN_OR_RETURN(const SyncMode mode, ParseSyncMode(options_.training.mode));
  if (!mode.is_lockstep()) {
    return fails("in mode ", options_.training.mode.name,
                 mode.has_quorum() ? " with a quorum" : "",
                 ", in which weights arrive at any time; close the session");
  }
  if (!TakesTensorsApart(options_.training)) {
    return fails("with optimizer ", options_.training.optimizer.name,
                 ", which needs a gradient of every tensor at every step");
  }
  if (!tensor.ready) return fails("before Wait, at step ", tensor.version);
  if (tensor.keeps_pace()) {
    if (!IsBetweenSteps() || tensor.sum_pushes > 0) {
      return fails("in the middle of step ", step_, "; push or skip all tensors first");
    }
    if (std::ranges::count_if(tensors_, &Tensor::keeps_pace) == 1) {
      return fails("as it is the only trained tensor that is left; call Leave");
    }
    --to_begin_;
    undeclared_.push_back(id);
  }
  tensor.is_undeclared = true;
  tensor.memory = {};
  tensor.view = {};
  tensor.sum = {};
  data_plane_->Release(id);
  return absl::OkStatus();
}

void Session::Impl::SkipUndeclared() {
  for (const TensorId id : undeclared_) {
    Tensor& tensor = tensors_[id];
    if (!tensor.ready || tensor.version >= step_) continue;
    MakeUnready(tensor);
    ++tensor.version;
    data_plane_->Skip(id);
  }
}

}  // namespace syncline
