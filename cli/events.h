// `syncline events`: what happened to a job, or to all, as the coordinator keeps it.
#pragma once

#include <cstddef>
#include <string>

#include "CLI/App.hpp"
#include "absl/time/time.h"
#include "cli/command.h"

namespace syncline {

namespace v1 {
class Event;
}

enum class EventColumns { kOfOneJob, kWithJob };

struct EventLayout {
  EventColumns columns = EventColumns::kOfOneJob;
  absl::TimeZone zone = absl::UTCTimeZone();
  size_t width = 0;        // of a line; 0: no limit
  size_t job_columns = 0;  // of the longest name of a job that is known
};

// A line for each event, in their order:
//
//   2026-11-25 13:04:05  step 120       death        worker 3 (host:19) was dropped: …
//
// What happened is broken below itself where a line has a limit. So that half a line is
// left for it, the day goes into a line of its own, then the step is left out.
class EventLines {
 public:
  explicit EventLines(const EventLayout& layout);

  // Without its end; of a new day perhaps two lines.
  std::string Of(const v1::Event& event);

 private:
  EventLayout layout_;
  bool has_day_ = true;
  bool has_step_ = true;
  std::string day_ = {};  // of the last event
};

void AddEvents(CLI::App& app, Command* selected);

}  // namespace syncline
