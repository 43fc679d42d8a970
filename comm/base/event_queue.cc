#include "comm/base/event_queue.h"

#include <algorithm>
#include <utility>

namespace syncline {

void EventQueue::After(absl::Duration delay, std::function<void()> fn) {
  if (delay == absl::InfiniteDuration()) return;
  const absl::Duration time = now_ + std::max(delay, absl::ZeroDuration());
  events_.push({time, next_sequence_++, std::move(fn)});
}

bool EventQueue::RunNext() {
  if (events_.empty()) return false;
  // top() is const only to protect the order. The event is popped before the queue can
  // compare it again.
  Event event = std::move(const_cast<Event&>(events_.top()));
  events_.pop();
  now_ = event.time;
  event.fn();
  return true;
}

int EventQueue::RunUntil(absl::Duration time) {
  int ran = 0;
  while (next_time() <= time && RunNext()) ++ran;
  now_ = std::max(now_, time);
  return ran;
}

absl::Duration EventQueue::next_time() const {
  return events_.empty() ? absl::InfiniteDuration() : events_.top().time;
}

}  // namespace syncline
