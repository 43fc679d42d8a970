// How a data plane ends, and the program's memory with it is the program's again.
#include <utility>

#include "worker/client/data_plane.h"

namespace syncline {

// The endpoints go first: what they still send is cancelled, and its memory with it free
// once that was told.
bool DataPlane::Close(std::function<void()> closed) {
  return loop_->Post([this, closed = std::move(closed)](Transport&) {
    failed_ = true;
    to_encode_.clear();
    AwaitCodecs();
    NoteUnfinished();
    exchange_ = nullptr;
    links_ = nullptr;
    if (closed) closed_ = closed;
    give_up_at_ = clock_.Now() + options_.timeouts.shutdown_grace;
    ReportIfClosed();
  });
}

void DataPlane::ReportIfClosed() {
  if (!closed_) return;
  if (borrowed_sends_ > 0) {
    if (clock_.Now() < give_up_at_) return;
    options_.log.Warning("closed connections still hold gradients",
                         {{"sends", borrowed_sends_}});
  }
  HideUnfinished();
  std::exchange(closed_, nullptr)();
}

void DataPlane::Stop() {
  if (loop_ == nullptr) return;  // it was never started
  Close(nullptr);
  loop_->Stop();
  NoteUnfinished();
  HideUnfinished();
}

void DataPlane::NoteUnfinished() {
  if (exchange_ != nullptr) unfinished_ = exchange_->UnfinishedGradients();
}

// Servers may still hold what they were lent, and count it before they hear that this worker
// is gone. The program, which gets its gradients back, must not change that.
void DataPlane::HideUnfinished() {
  for (const ByteView gradient : unfinished_) {
    if (arena_->Withdraw(gradient)) continue;
    options_.log.Warning(
        "no memory to take a gradient back that servers read where it lies: what the "
        "program writes there until they hear that this worker has gone may count",
        {{"bytes", gradient.size()}});
  }
}

}  // namespace syncline
