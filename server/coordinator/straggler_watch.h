// Whom the others of a job wait for, step after step: a worker whose own part of a step (all
// phases but those in which it waits for others and for new weights, comm/base/step_phases.h)
// takes several times as long as that of the next slowest, while the others wait longer.
//
//   StragglerWatch watch(/*factor=*/2);
//   watch.Look(view, now);              // now and then
//   if (watch.suspect() && watch.suspect()->IsOneFor(absl::Minutes(1))) …
//
// Looked at in windows: ten seconds or more, in which every member has made three steps. Of a
// suspect all windows in a row say the same, also without the longest of its steps: one that
// says something else, or takes longer than three minutes, clears it. Other members, and
// another phase of the job, clear it too, and the first window after that is not judged:
// programs that begin compile, read and validate.
//
// Thread safety: none; pure, but for what it remembers.
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
  double own_seconds = 0;    // of a step, in the last window
  double next_seconds = 0;   // of the next slowest
  double whole_seconds = 0;  // a step, with all waiting
  bool is_by_link = false;   // of what it takes longer most is pushes
  int windows = 0;           // that said so, in a row
  absl::Duration lasted = {};

  double ratio() const { return own_seconds / next_seconds; }
  // Steps took so many times as long as they would without it.
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
  // Share of a step in which members wait for others, their mean in the last window.
  double waited() const { return waited_; }

 private:
  struct Member {
    uint32_t incarnation = 0;
    std::string name = {};
    WorkerPhases phases = {};
    StepDurations durations = {};
  };
  using Members = std::map<uint32_t, Member>;  // by rank
  // Of a member in a window.
  struct Figures {
    uint32_t rank = 0;
    uint64_t steps = 0;
    WorkerPhases step = {};  // one of them
    double own = 0;
    double waits = 0;
    double longest = 0;  // step

    double whole() const { return own + waits; }
    // Without its longest step, as if it had done nothing else in that.
    double UsualOwn() const;
  };

  void Begin(Members members, absl::Duration now);
  void Clear();
  void Judge(const Members& members, absl::Duration length);
  // Empty: somebody says what cannot be.
  std::vector<Figures> FiguresOf(const Members& members, absl::Duration length) const;
  bool IsStraggler(const Figures& slowest, const Figures& next, double waits,
                   size_t members) const;

  double factor_;
  std::optional<absl::Duration> since_;  // of the window
  bool is_first_ = true;                 // since members or phase changed
  Members then_;                         // as it began
  std::optional<Straggler> suspect_;
  double waited_ = 0;
};

}  // namespace syncline
