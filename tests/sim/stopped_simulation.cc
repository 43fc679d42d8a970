#include "tests/sim/stopped_simulation.h"

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/event_queue.h"
#include "comm/base/sync_mode.h"
#include "comm/transport/inproc/inproc.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/reference.h"
#include "tests/sim/server_process.h"
#include "tests/sim/worker_process.h"

namespace syncline::sim {
namespace {

constexpr absl::Duration kLongestRun = absl::Minutes(5);  // in simulated time
constexpr absl::Duration kF = absl::Seconds(4);
constexpr absl::Duration kLease = absl::Milliseconds(2400);  // 0.6 F (docs/modes.md)
// A step takes 20 ms, and its messages and codecs take as long again. A few of these
// follow each other. The coordinator checks every F/20.
constexpr absl::Duration kSlack = absl::Milliseconds(400);  // 0.1 F
constexpr absl::Duration kLookEvery = absl::Milliseconds(2);
constexpr uint64_t kSteps = 60;

Timeouts TimeoutsOf(DropsSilent drops) {
  Timeouts timeouts = Timeouts::Derive(kF);
  if (drops == DropsSilent::kAfterFiveTimeouts) timeouts.lease = 5 * kF;
  return timeouts;
}

InprocOptions SmallDelays(std::mt19937_64& random) {
  InprocOptions options;
  options.seed = random();
  options.faults.max_delay += absl::Microseconds(random() % 2000);
  return options;
}

// Returns the mode with its options. A quorum is all workers but the stopped one.
NamedOptions ModeOf(std::string_view mode, uint32_t workers, uint64_t random) {
  if (mode == "ssp") {
    return {.name = "ssp", .values = {{"staleness", static_cast<double>(random % 7)}}};
  }
  NamedOptions named =
      *ParseModeText(mode == "quorum" ? std::string_view("bsp:quorum=1") : mode);
  if (named.values.contains("quorum")) {
    named.values = {{"quorum", static_cast<double>(workers - 1)}};
  }
  return named;
}

JobSpec JobOf(uint32_t workers, NamedOptions mode) {
  JobSpec job{.name = "stopped", .workers = workers};
  job.training.optimizer = {.name = "sgd", .options = {{"lr", 0.01}}};
  job.training.mode = std::move(mode);
  job.tensors = {{.name = "a", .shape = {300}}, {.name = "b", .shape = {40, 5}}};
  return job;
}

class StoppedRun {
 public:
  StoppedRun(uint64_t seed, std::string_view mode, DropsSilent drops)
      : random_(seed),
        wanted_(2 + static_cast<uint32_t>(random_() % 2)),
        stopped_(static_cast<uint32_t>(random_() % wanted_)),
        stops_after_(absl::Microseconds(100'000 + random_() % 300'000)),
        job_(JobOf(wanted_, ModeOf(mode, wanted_, random_()))),
        codecs_(CodecRegistry::Builtin()),
        network_(events_, SmallDelays(random_)),
        timeouts_(TimeoutsOf(drops)),
        control_(events_, {.timeouts = timeouts_, .expected_servers = 1}, random_()),
        reference_(job_) {}

  absl::Status Execute() {
    server_ = std::make_unique<ServerProcess>(
        ServerProcess::Parts{.events = events_,
                             .network = network_,
                             .control = control_,
                             .reference = reference_,
                             .traffic = traffic_,
                             .codecs = codecs_,
                             .heartbeat_interval = timeouts_.heartbeat_interval,
                             .disk = disk_},
        "server");
    for (uint32_t rank = 0; rank < wanted_; ++rank) StartWorker(rank);
    Look();
    while (!IsOver() && violation_.empty() && reference_.violation().empty()) {
      const bool goes_on = events_.RunNext() && events_.now() < kLongestRun;
      if (!goes_on) violation_ = "the run does not end";
    }
    if (violation_.empty()) violation_ = reference_.violation();
    if (violation_.empty()) return absl::OkStatus();
    std::string text = absl::StrCat(
        "rank ", stopped_, " is stopped since ", absl::FormatDuration(stopped_at_),
        " at step ", stopped_step_, ", mode ", FormatNamedOptions(job_.training.mode));
    for (const auto& worker : workers_) {
      absl::StrAppend(&text, "; ", worker->Describe());
    }
    return absl::InternalError(absl::StrCat(violation_, "; ", text));
  }

 private:
  void StartWorker(uint32_t rank) {
    const auto ended = [this](uint32_t who, const absl::Status& status) {
      if (who == stopped_ || status.ok()) return;
      violation_ = absl::StrCat("rank ", who, " is innocent: ", status.ToString());
    };
    workers_.push_back(
        std::make_unique<WorkerProcess>(WorkerProcess::Parts{.events = events_,
                                                             .network = network_,
                                                             .control = control_,
                                                             .reference = reference_,
                                                             .traffic = traffic_,
                                                             .codecs = codecs_,
                                                             .job = job_,
                                                             .timeouts = timeouts_,
                                                             .target_step = kSteps,
                                                             .seed = random_(),
                                                             .on_end = ended},
                                        rank));
  }

  bool HasStopped() const { return stopped_at_ > absl::ZeroDuration(); }
  bool IsOver() const {
    if (!HasStopped()) return false;
    for (uint32_t rank = 0; rank < wanted_; ++rank) {
      if (rank != stopped_ && !workers_[rank]->IsDone()) return false;
    }
    return true;
  }

  void Look() {
    if (!HasStopped() && workers_[stopped_]->step() > 1 &&
        events_.now() >= stops_after_) {
      stopped_at_ = events_.now();
      stopped_step_ = workers_[stopped_]->step();
      workers_[stopped_]->Freeze();
      for (uint32_t rank = 0; rank < wanted_; ++rank) moved_[rank] = {0, stopped_at_};
    }
    for (uint32_t rank = 0; HasStopped() && rank < wanted_; ++rank) {
      if (rank != stopped_ && !workers_[rank]->IsDone()) Judge(rank);
    }
    events_.After(kLookEvery, [this] { Look(); });
  }

  // Records a violation if the worker waits for its next step longer than allowed.
  void Judge(uint32_t rank) {
    Moved& moved = moved_[rank];
    const uint64_t step = workers_[rank]->step();
    if (step != moved.step) moved = {step, events_.now()};
    const SyncMode mode = job_.training.sync();
    const bool waits_for_nobody =
        mode.is_async() || (mode.has_quorum() && !mode.is_whole);
    const bool is_at_bound = step >= stopped_step_ + mode.staleness;
    const absl::Duration wait = events_.now() - moved.at;
    const absl::Duration since = events_.now() - stopped_at_;
    const bool may_wait = !waits_for_nobody && is_at_bound && since <= kLease + kSlack;
    if (may_wait || wait <= kSlack) return;
    violation_ = absl::StrCat("rank ", rank, " waits in step ", step, " for ",
                              absl::FormatDuration(wait), ", ",
                              absl::FormatDuration(since), " after the stop");
  }

  struct Moved {
    uint64_t step = 0;
    absl::Duration at = {};
  };

  std::mt19937_64 random_;
  const uint32_t wanted_;
  const uint32_t stopped_;
  const absl::Duration stops_after_;
  const JobSpec job_;
  const CodecRegistry codecs_;
  EventQueue events_;
  InprocNetwork network_;
  const Timeouts timeouts_;
  ControlPlane control_;
  Reference reference_;
  Traffic traffic_;
  Disk disk_;
  std::unique_ptr<ServerProcess> server_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  absl::Duration stopped_at_ = absl::ZeroDuration();
  uint64_t stopped_step_ = 0;
  std::map<uint32_t, Moved> moved_;  // by rank
  std::string violation_;
};

}  // namespace

absl::Status SimulateStopped(uint64_t seed, std::string_view mode, DropsSilent drops) {
  return StoppedRun(seed, mode, drops).Execute();
}

}  // namespace syncline::sim
