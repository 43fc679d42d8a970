// A session's side of traces: orders in, what its threads recorded out with heartbeats.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/client/session_impl.h"

namespace syncline {

std::vector<TraceTrack*> Session::Impl::CodecTracks(uint32_t threads,
                                                    TraceRecorder& recorder) {
  std::vector<TraceTrack*> tracks;
  for (uint32_t i = 1; i <= threads; ++i) {
    tracks.push_back(recorder.AddTrack(absl::StrCat("codec ", i)));
  }
  return tracks;
}

void Session::Impl::TakeOrder(const v1::TraceOrder& order) {
  uint64_t next = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (!membership_ || membership_->job() != order.job()) return;
    next = step_ + 1;  // some of the present one is over
  }
  auto answer = trace_.Take(order, next);
  if (!answer) return;
  options_.log.Info("a trace begins", {{"step", next}});
  link_->Send(*std::move(answer));
}

void Session::Impl::SendTrace() {
  if (!trace_.job()) return;
  uint64_t reached = 0;
  {
    absl::MutexLock lock(&mutex_);
    reached = AllReady() || step_ == 0 ? step_ : step_ - 1;
  }
  for (auto& part : trace_.Parts(reached, link_.get())) link_->Send(std::move(part));
}

void Session::Impl::EndTrace() {
  for (auto parts = trace_.Parts(TraceSender::kNoStepComes, link_.get()); !parts.empty();
       parts = trace_.Parts(TraceSender::kNoStepComes, link_.get())) {
    for (auto& part : parts) link_->Send(std::move(part));
  }
}

}  // namespace syncline
