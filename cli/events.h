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
  size_t width = 0;  // of a line; what is longer is broken between words. 0: none is
};

// "2026-11-25 13:04:05  step 120     death       worker 3 (host:19) was dropped: …"
std::string EventLine(const v1::Event& event, const EventLayout& layout);

void AddEvents(CLI::App& app, Command* selected);

}  // namespace syncline
