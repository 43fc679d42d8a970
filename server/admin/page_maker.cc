#include "server/admin/page_maker.h"

#include <utility>

namespace syncline {

PageMaker::PageMaker(std::function<void()> on_made)
    : on_made_(std::move(on_made)), thread_([this] { Run(); }) {}

PageMaker::~PageMaker() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void PageMaker::Begin(const std::function<HttpReply()>& make) {
  absl::MutexLock lock(&mutex_);
  order_ = &make;
}

std::optional<HttpReply> PageMaker::TakeReply() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(reply_, std::nullopt);
}

void PageMaker::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || order_ != nullptr;
  };
  for (;;) {
    const std::function<HttpReply()>* make = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (stopping_) return;
      make = std::exchange(order_, nullptr);
    }
    HttpReply reply = (*make)();
    {
      absl::MutexLock lock(&mutex_);
      reply_ = std::move(reply);
    }
    on_made_();
  }
}

}  // namespace syncline
