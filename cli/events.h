// `syncline events`: what happened to a job, or to all, as the coordinator keeps it.
#pragma once

#include <string>

#include "CLI/App.hpp"
#include "absl/time/time.h"
#include "cli/command.h"

namespace syncline {

namespace v1 {
class Event;
}

enum class EventColumns { kOfOneJob, kWithJob };

// "2026-11-25 13:04:05  step 120     death       worker 3 (host:19) was dropped: …"
std::string EventLine(const v1::Event& event, EventColumns columns,
                      const absl::TimeZone& zone);

void AddEvents(CLI::App& app, Command* selected);

}  // namespace syncline
