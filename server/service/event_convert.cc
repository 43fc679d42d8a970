#include "server/service/event_convert.h"

#include <string>

namespace syncline {
namespace {

void Write(const LoggedEvent& logged, v1::Event& out) {
  const CoordinatorEvent& event = logged.event;
  out.set_job(event.job);
  out.set_job_name(event.job_name);
  out.set_number(logged.number);
  out.set_time(static_cast<double>(absl::ToUnixMillis(logged.time)) / 1000);
  out.set_kind(std::string(EventKindName(event.kind)));
  out.set_step(event.step);
  out.set_what(event.what);
  if (event.took) out.set_seconds(absl::ToDoubleSeconds(*event.took));
}

}  // namespace

v1::EventsReply ToProto(const std::vector<LoggedEvent>& events) {
  v1::EventsReply reply;
  for (const LoggedEvent& logged : events) Write(logged, *reply.add_events());
  return reply;
}

void AppendEvents(const std::map<uint32_t, std::vector<LoggedEvent>>& events,
                  v1::StatusReply& reply) {
  if (const auto own = events.find(0); own != events.end()) {
    for (const LoggedEvent& logged : own->second) Write(logged, *reply.add_events());
  }
  for (v1::JobStatus& job : *reply.mutable_jobs()) {
    const auto found = events.find(job.job());
    if (found == events.end()) continue;
    for (const LoggedEvent& logged : found->second) Write(logged, *job.add_events());
  }
}

}  // namespace syncline
