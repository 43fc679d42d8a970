// A discrete-event queue, for simulated time in tests and tests/sim. Events run in the
// order of their times; events with equal times run in the order of insertion.
//
// Thread safety: none, one thread only. A function may add events while it runs.
//
//   EventQueue events;
//   events.After(absl::Milliseconds(5), [&] { server.Tick(events.now()); });
//   while (!done && events.RunNext()) {}
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "absl/time/time.h"

namespace syncline {

class EventQueue {
 public:
  // Time since the start; moves only inside RunNext and RunUntil.
  absl::Duration now() const { return now_; }

  // Runs `fn` once `delay` from now. A negative delay counts as zero; an infinite one
  // never comes.
  void After(absl::Duration delay, std::function<void()> fn);

  // Advances to the next event and runs it. Returns false if there is none.
  bool RunNext();

  // Runs all events up to and including `time`, also those added meanwhile; now() is then
  // at least `time`. Returns how many events ran.
  int RunUntil(absl::Duration time);

  bool empty() const { return events_.empty(); }

  // Returns when the next event is due; InfiniteDuration if there is none.
  absl::Duration next_time() const;

 private:
  struct Event {
    absl::Duration time;
    uint64_t sequence;
    std::function<void()> fn;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.sequence > b.sequence;
    }
  };

  absl::Duration now_ = absl::ZeroDuration();
  uint64_t next_sequence_ = 0;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
};

}  // namespace syncline
