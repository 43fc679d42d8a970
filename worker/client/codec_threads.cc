#include "worker/client/codec_threads.h"

#include <algorithm>
#include <utility>

#include "comm/base/machine.h"

namespace syncline {
namespace {

// Pieces of work that may wait for each thread before the threads count as behind. The
// exchange requests two encodings at a time for each thread.
constexpr uint32_t kMaxWaiting = 4;

}  // namespace

uint32_t ThreadsForCodecs(std::optional<uint32_t> asked) {
  if (asked) return std::min(*asked, kMaxCodecThreads);
  const auto cores = static_cast<uint32_t>(std::max(1, DescribeMachine().cores));
  return std::min(cores / 2, kMaxDefaultCodecThreads);
}

CodecThreads::~CodecThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void CodecThreads::Submit(Work work) {
  while (threads_.size() < options_.threads) {
    const size_t number = threads_.size();
    TraceTrack* const track =
        number < options_.tracks.size() ? options_.tracks[number] : nullptr;
    threads_.emplace_back([this, track] { Run(track); });
  }
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(std::move(work));
  ++under_way_;
}

bool CodecThreads::IsBehind() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size() >= size_t{kMaxWaiting} * options_.threads;
}

void CodecThreads::Finish() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &CodecThreads::IsIdle));
}

void CodecThreads::Run(TraceTrack* track) {
  CodecWorkspace workspace = {.trace = track};
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &CodecThreads::MustAct));
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work(workspace);
    work = nullptr;
    absl::MutexLock lock(&mutex_);
    --under_way_;
  }
}

}  // namespace syncline
