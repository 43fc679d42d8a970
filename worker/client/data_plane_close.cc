// Closes a data plane, and gives the program's memory back to it.
#include <utility>

#include "worker/client/data_plane.h"

namespace syncline {

// Destroys the exchange and the endpoints, which cancels their sends. A send's memory is
// free once its `done` was called.
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
  if (loop_ == nullptr) return;  // the loop was never started
  Close(nullptr);
  loop_->Stop();
  NoteUnfinished();
  HideUnfinished();
}

void DataPlane::NoteUnfinished() {
  if (exchange_ != nullptr) unfinished_ = exchange_->UnfinishedGradients();
}

// Withdraws gradients that servers may still read in place. A server may count such a
// gradient before it learns that this worker is gone. It must not see what the program
// writes to the memory from now on.
void DataPlane::HideUnfinished() {
  for (const ByteView gradient : unfinished_) {
    if (arena_->Withdraw(gradient)) continue;
    options_.log.Warning(
        "too little memory to copy a gradient that servers read in place: what the "
        "program writes to it before they learn that this worker has left may count",
        {{"bytes", gradient.size()}});
  }
}

}  // namespace syncline
