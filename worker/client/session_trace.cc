// The part of a session that handles traces: it takes orders, and sends recorded spans
// with the heartbeats.
#include <algorithm>
#include <optional>
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
    next = step_ + 1;  // the present step has already begun
  }
  auto answer = trace_.Take(order, next);
  if (!answer) return;
  options_.log.Info("a trace begins", {{"step", next}});
  link_->Send(*std::move(answer));
}

bool Session::Impl::BeginPass(ModelPass pass) {
  absl::MutexLock lock(&mutex_);
  pass_.reset();
  if (!membership_ || !model_track_->IsOpen(membership_->job())) return false;
  pass_ = TraceSpan{
      .begin_ns = model_track_->Now(),
      .step = step_,
      .kind = pass == ModelPass::kForward ? TraceKind::kForward : TraceKind::kBackward};
  return true;
}

void Session::Impl::EndPass() {
  absl::MutexLock lock(&mutex_);
  if (!pass_) return;
  TraceSpan span = *std::exchange(pass_, std::nullopt);
  if (!membership_ || !model_track_->IsOpen(membership_->job())) return;
  span.end_ns = model_track_->Now();
  model_track_->Add(span);
}

void Session::Impl::SendTrace() {
  if (!trace_.job()) return;
  uint64_t reached = 0;
  {
    absl::MutexLock lock(&mutex_);
    reached = AllReady() || step_ == 0 ? step_ : step_ - 1;
    // The last gradient of a step is pushed before its backward pass ends.
    if (pass_) reached = std::min(reached, pass_->step);
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
