// Finds the worker that the others of a job wait for, step after step. Its own part of a
// step takes several times as long as that of the next slowest worker, while the others
// wait longer than it does. The own part is all phases except waiting for others and for
// new weights (comm/base/step_phases.h).
//
//   StragglerWatch watch(/*factor=*/2);
//   watch.Look(view, now);              // now and then
//   if (watch.suspect() && watch.suspect()->IsOneFor(absl::Minutes(1))) …
//
// Workers are compared in windows of at least ten seconds, in which every member has made
// three steps. A worker stays the suspect only while each window confirms it, also
// without its longest step. A window that says otherwise, or that takes longer than three
// minutes, clears the suspect. So do a change of members and another phase of the job.
// The first window after that is not judged, because programs that start compile, read
// and validate.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/step_durations.h"
#include "comm/base/step_phases.h"
#include "server/coordinator/views.h"

namespace syncline {

struct Straggler {
  static constexpr int kLeastWindows = 3;

  uint32_t rank = 0;
  uint32_t incarnation = 0;
  std::string name = {};
  double own_seconds = 0;    // own part of a step, in the last window
  double next_seconds = 0;   // the same of the next slowest worker
  double whole_seconds = 0;  // a whole step, with all waiting
  bool is_by_link = false;   // pushes are most of its excess over the next slowest
  int windows = 0;           // windows in a row that confirmed it
  absl::Duration lasted = {};

  double ratio() const { return own_seconds / next_seconds; }
  // Duration of a step over its estimated duration without this worker.
  double gain() const {
    return whole_seconds / (whole_seconds - (own_seconds - next_seconds));
  }
  bool IsOneFor(absl::Duration time) const {
    return lasted >= time && windows >= kLeastWindows;
  }
};

class StragglerWatch {
 public:
  explicit StragglerWatch(double factor) : factor_(factor) {}

  void Look(const JobView& job, absl::Duration now);
  const std::optional<Straggler>& suspect() const { return suspect_; }
  // Mean share of a step, over all members, that they wait for others. Last window only.
  double waited() const { return waited_; }

 private:
  struct Member {
    uint32_t incarnation = 0;
    std::string name = {};
    WorkerPhases phases = {};
    StepDurations durations = {};
  };
  using Members = std::map<uint32_t, Member>;  // by rank
  // A member in a window, in seconds of a mean step.
  struct Figures {
    uint32_t rank = 0;
    uint64_t steps = 0;
    WorkerPhases step = {};  // its phases
    double own = 0;
    double waits = 0;
    double longest = 0;  // its longest step

    double whole() const { return own + waits; }
    // Its own part without its longest step, which counts as own part entirely.
    double UsualOwn() const;
  };

  void Begin(Members members, absl::Duration now);
  void Clear();
  void Judge(const Members& members, absl::Duration length);
  // Empty: some member reported impossible values.
  std::vector<Figures> FiguresOf(const Members& members, absl::Duration length) const;
  bool IsStraggler(const Figures& slowest, const Figures& next, double waits,
                   size_t members) const;

  double factor_;
  std::optional<absl::Duration> since_;  // begin of the window
  bool is_first_ = true;  // first window since the members or the phase changed
  Members then_;          // members at the begin of the window
  std::optional<Straggler> suspect_;
  double waited_ = 0;
};

}  // namespace syncline
