// Plans events of a run: at an early time, or once a share of the steps is done. So
// faults happen everywhere between the first hello and the last step, in runs of any
// length.
//
// Thread safety: none.
//
//   progress.Somewhere(absl::Milliseconds(400), [this] { KillWorker(1); });
//   while (...) { events.RunNext(); progress.Reached(steps_made / steps_wanted); }
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "comm/base/event_queue.h"
#include "tests/sim/random_job.h"

namespace syncline::sim {

class RunProgress {
 public:
  RunProgress(EventQueue& events, Random& random) : events_(events), random_(random) {}

  // Calls `fn` within the first `early` of the time, or after a random share of the
  // steps.
  void Somewhere(absl::Duration early, std::function<void()> fn) {
    if (OneIn(random_, 2)) {
      events_.After(Between(random_, 0, 1) * early, std::move(fn));
    } else {
      After(Between(random_, 0, 1), std::move(fn));
    }
  }

  // Calls `fn` shortly after this share of the steps was made.
  void After(double share, std::function<void()> fn) {
    later_.emplace(share, std::move(fn));
  }

  void Reached(double share) {
    while (!later_.empty() && later_.begin()->first <= share) {
      auto node = later_.extract(later_.begin());
      events_.After(absl::Milliseconds(Between(random_, 0, 20)),
                    std::move(node.mapped()));
    }
  }

 private:
  EventQueue& events_;
  Random& random_;
  std::multimap<double, std::function<void()>> later_;  // by share
};

}  // namespace syncline::sim
