#include "comm/base/trace_recorder.h"

#include <algorithm>

namespace syncline {

void TraceTrack::Add(const TraceSpan& span) {
  if (span.step >= recorder_.until_.load(std::memory_order_relaxed)) return;
  const uint64_t end = end_.load(std::memory_order_relaxed);
  if (end - begin_.load(std::memory_order_acquire) >= TraceRecorder::kSpansPerTrack) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  spans_[end % TraceRecorder::kSpansPerTrack] = span;
  end_.store(end + 1, std::memory_order_release);
}

TraceTrack* TraceRecorder::AddTrack(std::string name) {
  return tracks_.emplace_back(std::make_unique<TraceTrack>(*this, std::move(name))).get();
}

void TraceRecorder::Open(uint32_t job) {
  Close();
  Limit(std::numeric_limits<uint64_t>::max());
  for (const auto& track : tracks_) {
    if (track->spans_ == nullptr) {
      track->spans_ = std::make_unique<TraceSpan[]>(kSpansPerTrack);
    }
    track->begin_.store(track->end_.load(std::memory_order_acquire),
                        std::memory_order_release);
    track->lost_.store(0, std::memory_order_relaxed);
  }
  open_.store(uint64_t{job} + 1, std::memory_order_release);
}

std::optional<TraceRecorder::Taken> TraceRecorder::Take(size_t most) {
  for (const auto& track : tracks_) {
    const uint64_t begin = track->begin_.load(std::memory_order_relaxed);
    const uint64_t end =
        std::min(track->end_.load(std::memory_order_acquire), begin + most);
    if (begin == end) continue;
    Taken taken = {.track = track->name_, .spans = {}};
    taken.spans.reserve(end - begin);
    for (uint64_t i = begin; i < end; ++i) {
      taken.spans.push_back(track->spans_[i % kSpansPerTrack]);
    }
    track->begin_.store(end, std::memory_order_release);
    return taken;
  }
  return std::nullopt;
}

uint64_t TraceRecorder::lost() const {
  uint64_t lost = 0;
  for (const auto& track : tracks_) lost += track->lost_.load(std::memory_order_relaxed);
  return lost;
}

}  // namespace syncline
