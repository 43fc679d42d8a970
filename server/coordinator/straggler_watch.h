// Whom the others of a job wait for, step after step: a worker whose own part of a step (all
// phases but those in which it waits for others and for new weights, comm/base/step_phases.h)
// takes several times as long as that of the next slowest.
//
//   StragglerWatch watch(/*factor=*/2);
//   watch.Look(view, now);              // now and then
//   if (watch.suspect() && watch.suspect()->lasted >= absl::Minutes(1)) …
//
// Looked at in windows: ten seconds in which every member has made three steps, or a minute
// in which each has made one. A window with other members, or without steps, begins anew. Of
// a suspect all windows in a row say the same: one that says something else clears it.
//
// Thread safety: none; pure, but for what it remembers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "comm/base/step_phases.h"
#include "server/coordinator/views.h"

namespace syncline {

struct Straggler {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  std::string name = {};
  double own_seconds = 0;   // of a step, in the last window
  double next_seconds = 0;  // of the next slowest
  bool is_by_link = false;  // it pushes for longer than it computes
  absl::Duration lasted = {};

  double ratio() const { return own_seconds / next_seconds; }
};

class StragglerWatch {
 public:
  explicit StragglerWatch(double factor) : factor_(factor) {}

  void Look(const JobView& job, absl::Duration now);
  const std::optional<Straggler>& suspect() const { return suspect_; }
  // Share of a step in which members wait for others, their mean in the last window.
  double waited() const { return waited_; }

 private:
  struct Member {
    uint32_t incarnation = 0;
    std::string name = {};
    WorkerPhases phases = {};
  };
  using Members = std::map<uint32_t, Member>;  // by rank

  void Begin(Members members, absl::Duration now);
  void Judge(const Members& members, absl::Duration length);

  double factor_;
  std::optional<absl::Duration> since_;  // of the window
  Members then_;                         // as it began
  std::optional<Straggler> suspect_;
  double waited_ = 0;
};

}  // namespace syncline
