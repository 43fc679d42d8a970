// `syncline events`: prints the events of a job, or of all, that the coordinator keeps.
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
  size_t job_columns = 0;  // length of the longest known job name
};

// Formats events, one line each:
//
//   2026-11-25 13:04:05  step 120       death        worker 3 (host:19) was dropped: …
//
// If lines have a limit, long text is wrapped below itself. To leave half of a line for
// the text, the date first moves to a line of its own, then the step is omitted.
class EventLines {
 public:
  explicit EventLines(const EventLayout& layout);

  // Returns the line without a newline at its end. On a new date it may have two lines.
  std::string Of(const v1::Event& event);

 private:
  EventLayout layout_;
  bool has_day_ = true;
  bool has_step_ = true;
  std::string day_ = {};  // of the last event
};

void AddEvents(CLI::App& app, Command* selected);

}  // namespace syncline
