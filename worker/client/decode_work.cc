#include "worker/client/decode_work.h"

#include <utility>

namespace syncline {

DecodeWork::DecodeWork(const Options& options, const ViewLanding& landing,
                       PublishedView view, const ViewLanding::Place& place)
    : options_(options),
      landing_(landing),
      view_(std::move(view)),
      payload_bytes_(view_.payload.size),
      place_(place),
      is_short_(landing.IsShort(view_.header, place)) {}

void DecodeWork::Run(CodecWorkspace& workspace) {
  const uint64_t version = view_.header.step;
  TraceTrack* const track = workspace.trace;
  const bool is_traced = track != nullptr && version > 0 && track->IsOpen(options_.job);
  const int64_t began = is_traced ? track->Now() : 0;
  const ByteView payload = {view_.payload.data, view_.payload.size};
  {
    const CodecTimer timer(options_.clock, 0, cost_);
    result_ = landing_.Land(view_.header, payload, place_, workspace);
  }
  if (Device* const device = place_.weights.device()) status_ = device->status();
  if (!status_.ok()) result_ = ViewLanding::Result::kIgnored;
  const bool has_values = payload_bytes_ > 0 && result_ != ViewLanding::Result::kIgnored;
  if (options_.clock != nullptr && has_values) cost_.values = place_.range.elements;
  if (!has_values) cost_ = {};
  view_.payload = {};
  if (is_traced) {
    track->Add({.begin_ns = began,
                .end_ns = track->Now(),
                .step = options_.step,
                .block = view_.header.block,
                .rank = static_cast<uint16_t>(options_.rank),
                .kind = TraceKind::kDecodeBlock});
  }
}

}  // namespace syncline
