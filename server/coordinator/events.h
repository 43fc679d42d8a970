// Events of a job, or of the servers and the coordinator. The coordinator emits them as
// outputs, in order. The shell adds the time of day and stores them
// (server/service/event_log.h). They are the one source for `syncline status`, `syncline
// events`, top, the dashboard and the metrics.
//
// An event reports a change once. The present state is in the views (views.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace syncline {

enum class EventKind : uint8_t {
  kJoin,         // a worker has come
  kLeave,        // a worker has left in order
  kDeath,        // a worker has gone without a Leave, or was dropped; with the cause
  kExit,         // a worker's process has failed, as its launcher reports
  kEpoch,        // the membership has changed, with the reasons
  kSettings,     // a running job has new options; with the old ones
  kCodec,        // push_codec=auto of a worker has chosen another codec
  kCheckpoint,   // a checkpoint is complete, has failed, or was resumed from
  kRecovery,     // a job has recovered from a loss
  kStall,        // a job is held up by a member, or no longer is
  kServer,       // a server has come, gone, or been replaced
  kBackup,       // a backup is lost, or complete again
  kEnd,          // a job has ended
  kCoordinator,  // the coordinator has started
  kGoal,         // a goal is missed, met again, or will be missed (goal_watch.h)
  kAnswer,       // an automatic answer to a missed goal (goal_answers.h)
  kMoved,        // a server has handed its share of a job to another one, or failed to
};

// Returns the name in JSON and in labels of metrics, such as "join". Names never change.
std::string_view EventKindName(EventKind kind);
std::optional<EventKind> EventKindOf(std::string_view name);

struct CoordinatorEvent {
  uint32_t job = 0;  // 0: an event of the servers or the coordinator, for all jobs
  std::string job_name = {};  // empty if job is 0
  uint64_t step = 0;          // highest step that a member had reported
  EventKind kind = EventKind::kEpoch;
  std::string what = {};                              // a sentence
  std::optional<absl::Duration> took = std::nullopt;  // length, if it has one
};

}  // namespace syncline
