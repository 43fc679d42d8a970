// What happened: to a job, or to the servers and the coordinator around all jobs. The
// machine says events as outputs, in their order; the shell adds the time of day and keeps
// them (server/service/event_log.h). One source for status, `syncline events`, top, the
// dashboard and the metrics.
//
// An event says something once: what a state is, a view says (views.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace syncline {

enum class EventKind : uint8_t {
  kJoin,         // a worker comes
  kLeave,        // a worker goes with a goodbye
  kDeath,        // a worker goes without one, or is dropped; with its cause
  kExit,         // a worker's process has failed, as its launcher saw it
  kEpoch,        // another membership, with its reasons
  kSettings,     // new options of a job that runs, with the old ones
  kCodec,        // a worker's push_codec=auto chooses another one
  kCheckpoint,   // one is complete, has failed, or is what the job goes on from
  kRecovery,     // a job has got over a loss
  kStall,        // a job is held up by somebody, or no longer
  kServer,       // a server comes, goes, or is replaced
  kBackup,       // a backup is lost, or there again
  kEnd,          // of the job
  kCoordinator,  // it was started
  kGoal,         // one is missed, is met again, or will be missed (goal_watch.h)
  kAnswer,       // what the coordinator did about that by itself (goal_answers.h)
};

// "join" and so on: what JSON and labels of metrics have. They never change.
std::string_view EventKindName(EventKind kind);
std::optional<EventKind> EventKindOf(std::string_view name);

struct CoordinatorEvent {
  uint32_t job = 0;           // 0: of the servers or the coordinator, for all jobs
  std::string job_name = {};  // empty then
  uint64_t step = 0;          // the furthest that a member had said
  EventKind kind = EventKind::kEpoch;
  std::string what = {};                              // a sentence
  std::optional<absl::Duration> took = std::nullopt;  // of what has a length
};

}  // namespace syncline
