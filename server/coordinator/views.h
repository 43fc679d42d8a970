// The state that the coordinator shows to `syncline status` and to the metrics.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/step_durations.h"
#include "comm/base/step_phases.h"
#include "comm/job/durability.h"
#include "comm/job/goals.h"

namespace syncline {

// Effect of compression for one worker, since it joined.
struct CompressionFigures {
  uint64_t pushed_values = 0;       // elements of gradients
  uint64_t pushed_value_bytes = 0;  // their bytes on the wire
  uint64_t diverged_blocks = 0;     // blocks whose view differed from the servers'
  double encode_ns = 0;             // per element
  double decode_ns = 0;             // per element
  double residual_ratio = 0;        // norm of the residual over the norm of a gradient
  std::string choice = {};          // codec chosen by push_codec=auto, with the reason

  // FP32 bytes of gradients over their bytes on the wire. 0: nothing was pushed yet.
  double ratio() const;
};
// How fast a worker's links to other hosts are, as it has measured. 0: unknown.
struct LinkFigures {
  double sent_bytes_per_second = 0;
  double received_bytes_per_second = 0;
};
struct ServerView {
  uint32_t server = 0;
  uint32_t incarnation = 0;
  std::string name = {};
  std::string lanes = {};
  std::string lanes_because = {};
  uint32_t shards = 0;
  uint64_t bytes = 0;
  uint64_t memory_budget_bytes = 0;  // 0: unknown
  uint64_t memory_placed_bytes = 0;  // planned for its jobs
  absl::Duration heartbeat_age = {};
  // Set if its connection broke, or if it is not back after a coordinator restart.
  std::optional<absl::Duration> lost_for = std::nullopt;
  bool drains = false;  // it will end, and gets no new work
};
struct MemberView {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  std::string name = {};
  uint64_t step = 0;
  uint64_t bytes = 0;
  bool waiting = false;
  bool is_outside = false;  // it must wait until it may join
  absl::Duration heartbeat_age = {};
  bool is_silent = false;  // silent for some heartbeats, or disconnected: it may be dead
  uint64_t left_out = 0;   // steps that were closed without it
  CompressionFigures compression = {};
  WorkerPhases phases = {};
  uint64_t samples = 0;          // number of samples that it has contributed
  StepDurations durations = {};  // of its steps
  double window_fill = 0;  // bytes on their way to the shard with most, over the window
  LinkFigures links = {};
};
struct LossPoint {
  uint64_t step = 0;
  double learning_rate = 0;
  double loss = 0;  // mean over all reported samples
};
// Checkpoints of this run of a job.
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
  std::string resumed_from = {};  // empty: the job began from scratch
};
// The backup of one server.
struct BackupView {
  uint32_t server = 0;
  std::string holder = {};  // name of the server in whose memory it is
  std::string lost = {};    // why there is none; empty: there is one
  std::string next = {};    // what is done about the loss, or what is to replace it
  // Why its journal does not count, if it also has one. Empty: it counts.
  std::string journal_lost = {};
};
// State of a server's journal or backup of a job.
struct RecordProgress {
  uint64_t durable_step = 0;  // all records of steps below this are durable
  uint64_t lag_steps = 0;     // steps from durable_step to the furthest block
  uint64_t bytes = 0;         // bytes written, or sent
  std::string error = {};     // why a journal ended before its job; empty: it goes on
  // Journals only: bytes on disk, and the step at which the latest snapshots begin (0:
  // the first step).
  uint64_t disk_bytes = 0;
  uint64_t begins_at = 0;
};
// Recoveries of a job since this coordinator process began, by cause: "backup", "journal"
// or "coordinator" (recoveries.h).
struct RecoverySums {
  uint64_t count = 0;
  absl::Duration took = {};  // sum over all
};
struct RecoveryView {
  uint64_t count = 0;
  uint64_t rollbacks = 0;  // over all successive runs of that name
  std::map<std::string, RecoverySums> sums = {};
  std::string last = {};         // what was lost
  std::string last_causes = {};  // "backup", or "backup and coordinator"
  absl::Duration last_took = {};
  absl::Duration last_age = {};
};
// How a job meets one of its goals (goal_watch.h).
struct GoalView {
  Goal goal = {};
  std::optional<double> now = std::nullopt;  // value in the last window; empty: none
  absl::Duration now_age = {};               // since the last window began
  bool is_missed = false;                    // several windows in a row have missed it
  double budget = 0;                         // share of the last hour that may be missed
  double budget_left = 1;                    // share of the budget, 0 to 1
  double burn_rate_5m = 0;  // missed time over the time that the budget allows
  double burn_rate_1h = 0;
  uint64_t missed_windows = 0;  // in the last hour
  double met_seconds = 0;       // since the watch began
  double missed_seconds = 0;
  std::optional<absl::Duration> missed_in =
      std::nullopt;  // time until it is missed, by the trend
};
// The automatic answers to missed goals, and what prevents them (goal_answers.h).
struct AnswersView {
  std::string setting = {};                    // "exclude_straggler"
  std::map<std::string, uint64_t> given = {};  // number of answers, by kind
  std::string last = {};                       // the last answer; empty: none yet
  absl::Duration last_age = {};
  std::string state = {};  // what it waits for, or what prevents an answer
};
// How often a job's progress was pushed to Kubernetes, and how often that has failed.
struct PushCounts {
  uint64_t sent = 0;
  uint64_t failed = 0;
};
// What a job is doing, as operators see it.
enum class JobPhase {
  kWaiting,   // for workers or servers
  kRunning,   // trains
  kChanging,  // its members change
  kSaving,    // its members have left, and the last checkpoint is written
  kOver,
  kFailed,
};
// Returns a name such as "waiting".
std::string_view JobPhaseName(JobPhase phase);
std::ostream& operator<<(std::ostream& out, JobPhase phase);

struct JobView {
  uint32_t job = 0;
  std::string name = {};
  std::string run_id = {};
  JobPhase phase = JobPhase::kWaiting;
  std::string reason = {};  // why it waits, has changed last, or has failed
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t total_steps = 0;  // that the program is going to make; 0: unknown
  uint64_t parameters = 0;
  uint32_t expected_workers = 0;
  uint32_t expected_servers = 0;
  uint32_t attached_servers = 0;  // those of expected_servers that are attached
  uint32_t participants = 0;      // members whose gradients are in the last step
  uint64_t staleness = 0;         // steps from the slowest member to the fastest
  CompressionFigures pushed =
      {};  // values and bytes only, of all incarnations of all members
  std::map<std::string, uint64_t> epoch_changes = {};  // by cause (reasons.h)
  std::string push_codec = {};
  std::string publish_codec = {};
  std::string mode = {};     // "ssp:staleness=3"
  double learning_rate = 0;  // of the present step, before group scales
  double loss_scale = 1;
  uint64_t skipped_steps = 0;  // because of non-finite gradients
  uint64_t left_out = 0;       // contributions without which a quorum closed a step
  std::optional<double> loss = std::nullopt;  // of the latest reported step
  std::vector<LossPoint> loss_curve = {};     // range tests only
  // Norm over all gradients, before clipping, of the last finite step. Empty: not
  // computed.
  std::optional<double> gradient_norm = std::nullopt;
  std::vector<MemberView> members = {};
  CheckpointView checkpoint = {};
  Durability durability = Durability::kNone;
  bool waits_for_servers = false;  // that have died, until they restore their journals
  std::vector<BackupView> backups = {};
  std::map<uint32_t, RecordProgress> records =
      {};                         // by server; the latest report of each
  uint32_t training_servers = 0;  // servers with trained blocks: these have records
  RecoveryView recoveries = {};
  uint64_t moves = 0;  // of shares to other servers, in this life of the coordinator
  // The server that a share of one with two could move to if that were allowed. Only for
  // answers to goals; empty: there is none.
  std::string standby = {};
  std::map<uint32_t, ServerPhases> server_phases = {};  // by server
  std::vector<GoalView> goals = {};
  std::optional<AnswersView> answers = std::nullopt;  // empty: no answer is configured
  std::optional<PushCounts> pushes = std::nullopt;    // empty: none were reported

  // Whether it has ended, well or not.
  bool IsOver() const { return phase == JobPhase::kOver || phase == JobPhase::kFailed; }
};
struct CoordinatorView {
  std::vector<ServerView> servers = {};
  std::vector<JobView> jobs = {};
};

}  // namespace syncline
