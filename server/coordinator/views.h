// What the coordinator shows of itself, for `syncline status` and the metrics.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/step_durations.h"
#include "comm/base/step_phases.h"
#include "comm/job/goals.h"

namespace syncline {

// What compression does for one worker, since it joined.
struct CompressionFigures {
  uint64_t pushed_values = 0;       // elements of gradients
  uint64_t pushed_value_bytes = 0;  // of these on the wire
  uint64_t diverged_blocks = 0;     // whose view was not the servers'
  double encode_ns = 0;             // per element
  double decode_ns = 0;             // per element
  double residual_ratio = 0;        // norm of what is kept over that of a gradient
  std::string choice = {};          // of push_codec=auto, with its reason

  // FP32 bytes of gradients over bytes on the wire; 0 before the first one.
  double ratio() const;
};
struct ServerView {
  uint32_t server = 0;
  uint32_t incarnation = 0;
  std::string name = {};
  std::string lanes = {};
  std::string lanes_because = {};
  uint32_t shards = 0;
  uint64_t bytes = 0;
  uint64_t memory_budget_bytes = 0;  // 0: not known
  uint64_t memory_placed_bytes = 0;  // of its jobs, as planned
  absl::Duration heartbeat_age = {};
  // Its connection broke, or it is not back at a coordinator that was started anew.
  std::optional<absl::Duration> lost_for = std::nullopt;
  bool drains = false;  // it is to end, and gets nothing new
};
struct MemberView {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  std::string name = {};
  uint64_t step = 0;
  uint64_t bytes = 0;
  bool waiting = false;
  bool is_outside = false;  // it waits until it may join
  absl::Duration heartbeat_age = {};
  bool is_silent = false;  // of late: it may be dying
  uint64_t left_out = 0;   // steps that a quorum made without it
  CompressionFigures compression = {};
  WorkerPhases phases = {};
  uint64_t samples = 0;          // that it has contributed
  StepDurations durations = {};  // of its steps
};
struct LossPoint {
  uint64_t step = 0;
  double learning_rate = 0;
  double loss = 0;  // mean over all samples that were reported
};
// Of this run of a job.
struct CheckpointView {
  std::string latest = {};  // empty: none yet
  uint64_t step = 0;
  uint64_t bytes = 0;
  absl::Duration took = {};
  absl::Duration age = {};
  uint64_t written = 0;
  uint64_t failed = 0;
  std::string error = {};  // of the last one, if it failed
  bool is_under_way = false;
  std::string resumed_from = {};  // empty: it began anew
};
// Of one server of a job with durability=peer.
struct BackupView {
  uint32_t server = 0;
  std::string holder = {};  // whose memory it is in
  std::string lost = {};    // why there is none any more; empty: there is one
  std::string next = {};    // what is done about that
  // Why its journal does not count, where it has one, too; empty: it does.
  std::string journal_lost = {};
};
// What a server's journal or backup has of a job.
struct RecordProgress {
  uint64_t durable_step = 0;  // all records of steps below it
  uint64_t lag_steps = 0;     // the furthest block is so many steps further
  uint64_t bytes = 0;         // written, or sent
  std::string error = {};     // why a journal ended before its job; empty: it goes on
  // Of a journal: what the disk holds of it, and the step that its last snapshots begin
  // with; 0: the first.
  uint64_t disk_bytes = 0;
  uint64_t begins_at = 0;
};
// Losses that a job has got over since this life of the coordinator began, by what they
// took to get over: each of "backup", "journal" and "coordinator" (recoveries.h).
struct RecoverySums {
  uint64_t count = 0;
  absl::Duration took = {};  // together
};
struct RecoveryView {
  uint64_t count = 0;
  uint64_t rollbacks = 0;  // of all runs of its name, one after the other
  std::map<std::string, RecoverySums> sums = {};
  std::string last = {};         // what was lost
  std::string last_causes = {};  // "backup", or "backup and coordinator"
  absl::Duration last_took = {};
  absl::Duration last_age = {};
};
// How a job keeps to one of its goals (goal_watch.h).
struct GoalView {
  Goal goal = {};
  std::optional<double> now = std::nullopt;  // in the last window; none: none is over
  absl::Duration now_age = {};               // since that window began
  bool is_missed = false;                    // of late, for some windows in a row
  double budget = 0;                         // share of the last hour that may be missed
  double budget_left = 1;                    // of it, 0 to 1
  double burn_rate_5m = 0;                   // missed time over what the budget allows
  double burn_rate_1h = 0;
  uint64_t missed_windows = 0;  // of the last hour
  double met_seconds = 0;       // since it is watched
  double missed_seconds = 0;
  std::optional<absl::Duration> missed_in = std::nullopt;  // as its trend is
};
// What is done when they are missed, and why nothing is (goal_answers.h).
struct AnswersView {
  std::string setting = {};                    // "exclude_straggler"
  std::map<std::string, uint64_t> given = {};  // by kind, those that the setting has
  std::string last = {};                       // the last answer; empty: none yet
  absl::Duration last_age = {};
  std::string state = {};  // what it waits for, or what is in the way
};
struct JobView {
  uint32_t job = 0;
  std::string name = {};
  std::string run_id = {};
  std::string phase = {};   // "waiting", "running", "changing", "saving", ...
  std::string reason = {};  // why it waits, changed last, or failed
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t parameters = 0;
  uint32_t expected_workers = 0;
  uint32_t expected_servers = 0;
  uint32_t attached_servers = 0;   // of those
  uint32_t participants = 0;       // members whose gradients are in the last step
  uint64_t staleness = 0;          // steps from the slowest member to the fastest
  CompressionFigures pushed = {};  // values, and their bytes, of all lives of all members
  std::map<std::string, uint64_t> epoch_changes = {};  // by cause (reasons.h)
  std::string push_codec = {};
  std::string publish_codec = {};
  std::string mode = {};     // "ssp:staleness=3"
  double learning_rate = 0;  // of the present step, before group scales
  double loss_scale = 1;
  uint64_t skipped_steps = 0;                 // not finite
  uint64_t left_out = 0;                      // contributions that came after a quorum
  std::optional<double> loss = std::nullopt;  // of the latest step that was reported
  std::vector<LossPoint> loss_curve = {};     // of range tests
  // Of all gradients before clipping, of the last step that was finite; none: not computed.
  std::optional<double> gradient_norm = std::nullopt;
  std::vector<MemberView> members = {};
  CheckpointView checkpoint = {};
  std::string durability = {};     // "none", "disk", "peer" or "disk+peer"
  bool waits_for_servers = false;  // that have died, and come back with their journals
  std::vector<BackupView> backups = {};
  std::map<uint32_t, RecordProgress> records = {};  // by server, as each said last
  uint32_t training_servers = 0;  // that have trained blocks: so many have records
  RecoveryView recoveries = {};
  std::map<uint32_t, ServerPhases> server_phases = {};  // by server
  std::vector<GoalView> goals = {};
  std::optional<AnswersView> answers = std::nullopt;  // none: none may be given
};
struct CoordinatorView {
  std::vector<ServerView> servers = {};
  std::vector<JobView> jobs = {};
};

}  // namespace syncline
