#include "tests/sim/stall_simulation.h"

#include <array>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/event_queue.h"
#include "comm/base/failure.h"
#include "comm/transport/inproc/inproc.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/reference.h"
#include "tests/sim/server_process.h"
#include "tests/sim/worker_process.h"

namespace syncline::sim {
namespace {

constexpr uint32_t kMaxSimWorkers = 3;
constexpr uint32_t kServers = 2;
constexpr uint64_t kSteps = 8;
constexpr absl::Duration kF = absl::Seconds(1);
constexpr absl::Duration kLongestStandstill = absl::Seconds(7);  // 7 F
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

enum class Stall {
  kServerCut,       // one server no longer hears any worker
  kServerNeverMet,  // one server never hears any worker
  kWorkerCut,       // one worker is cut off from one server
  kClaims,          // one worker says that it waits, and pushes nothing
  kBarrier,         // one enters a barrier while others go on
  kCrashes,         // one dies before it pushes, and is started again
};
constexpr int kStalls = 6;

InprocOptions Network(std::mt19937_64& random) {
  InprocOptions options;
  options.seed = random();
  options.faults.max_delay += absl::Microseconds(random() % 5000);
  return options;
}

JobSpec SmallJob(uint32_t workers) {
  JobSpec job{.name = "stall", .workers = workers};
  job.training.optimizer = {.name = "sgd", .options = {{"lr", 0.01}}};
  job.tensors = {{.name = "a", .shape = {300}},
                 {.name = "b", .shape = {40, 5}},
                 {.name = "c", .shape = {25}}};
  return job;
}

class StallRun {
 public:
  explicit StallRun(uint64_t seed)
      : random_(seed),
        stall_(static_cast<Stall>(random_() % kStalls)),
        workers_wanted_(WorkersFor(stall_, random_())),
        faulty_(static_cast<uint32_t>(random_() % workers_wanted_)),
        begins_at_(1 + random_() % (kSteps - 2)),
        job_(SmallJob(workers_wanted_)),
        codecs_(CodecRegistry::Builtin()),
        network_(events_, Network(random_)),
        timeouts_(Timeouts::Derive(kF)),
        control_(events_, {.timeouts = timeouts_, .expected_servers = kServers},
                 random_()),
        reference_(job_) {}

  absl::Status Execute() {
    for (uint32_t i = 0; i < kServers; ++i) StartServer(i);
    for (uint32_t rank = 0; rank < workers_wanted_; ++rank) StartWorker(rank);
    if (stall_ == Stall::kServerNeverMet) Cut();
    if (stall_ == Stall::kServerCut || stall_ == Stall::kWorkerCut) {
      const auto micros = static_cast<int64_t>(random_() % 60000);
      events_.After(absl::Microseconds(micros), [this] { Cut(); });
    }
    Look();
    while (!IsOver() && violation_.empty() && reference_.violation().empty()) {
      if (!events_.RunNext()) violation_ = "nothing happens any more";
    }
    if (violation_.empty()) violation_ = reference_.violation();
    if (violation_.empty()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(violation_, "; ", Describe()));
  }

 private:
  // A single worker that crashes again and again does not hold up others.
  static uint32_t WorkersFor(Stall stall, uint64_t random) {
    const uint32_t least = stall == Stall::kCrashes ? 2 : 1;
    return least + static_cast<uint32_t>(random % (kMaxSimWorkers + 1 - least));
  }

  void StartServer(uint32_t number) {
    servers_.push_back(std::make_unique<ServerProcess>(
        ServerProcess::Parts{.events = events_,
                             .network = network_,
                             .control = control_,
                             .reference = reference_,
                             .traffic = traffic_,
                             .codecs = codecs_,
                             .heartbeat_interval = timeouts_.heartbeat_interval,
                             .engines = 1 + static_cast<uint32_t>(random_() % 2),
                             .disk = disks_[number]},
        absl::StrCat("server", number)));
  }

  WorkerFault FaultOf(uint32_t rank) const {
    if (rank != faulty_) return {};
    switch (stall_) {
      case Stall::kClaims:
        return {WorkerFault::kClaimsToWait, begins_at_};
      case Stall::kBarrier:
        return {WorkerFault::kEntersBarrier, begins_at_};
      case Stall::kCrashes:
        return {WorkerFault::kCrashes, begins_at_};
      default:
        return {};
    }
  }

  void StartWorker(uint32_t rank) {
    if (workers_[rank] != nullptr) return;
    workers_[rank] = std::make_unique<WorkerProcess>(
        WorkerProcess::Parts{
            .events = events_,
            .network = network_,
            .control = control_,
            .reference = reference_,
            .traffic = traffic_,
            .codecs = codecs_,
            .job = job_,
            .timeouts = timeouts_,
            .target_step = kSteps,
            .fault = FaultOf(rank),
            .seed = random_(),
            .on_end = [this](uint32_t ended,
                             const absl::Status& status) { OnWorkerEnd(ended, status); }},
        rank);
    if (cut_) Cut();
  }

  // Returns the number of steps of all blocks of all servers.
  uint64_t StepsMade() const {
    uint64_t steps = 0;
    for (const auto& server : servers_) {
      if (server->is_configured()) steps += server->Progress().completed;
    }
    return steps;
  }

  void Look() {
    const uint64_t made = StepsMade();
    if (made > made_) moved_at_ = events_.now();
    made_ = made;
    if (events_.now() - moved_at_ > kLongestStandstill) {
      violation_ = absl::StrCat("stands still since ", absl::FormatDuration(moved_at_));
    }
    events_.After(kLookEvery, [this] { Look(); });
  }

  // The launcher restarts the worker, unless the job is over.
  void OnWorkerEnd(uint32_t rank, const absl::Status& status) {
    if (workers_[rank] == nullptr) return;
    if (rank != faulty_ || BlamesAServer()) NoteEndOfInnocent(rank, status);
    workers_[rank]->Kill();
    graveyard_.push_back(std::move(workers_[rank]));
    if (FailureOf(status) == Failure::kRetryable) {
      told_[rank] = status;
      return;
    }
    events_.After(absl::Milliseconds(1), [this, rank] { StartWorker(rank); });
  }

  // Whether a server is to blame. All workers are innocent then.
  bool BlamesAServer() const {
    return stall_ == Stall::kServerCut || stall_ == Stall::kServerNeverMet;
  }
  // A worker that is cut off from one server looks like a server that hears no worker,
  // once the others have pushed everything.
  bool MayEndRetryably() const { return BlamesAServer() || stall_ == Stall::kWorkerCut; }

  void NoteEndOfInnocent(uint32_t rank, const absl::Status& status) {
    if (MayEndRetryably() && FailureOf(status) == Failure::kRetryable) return;
    violation_ = absl::StrCat("rank ", rank, " is innocent: ", status.ToString());
  }

  void Cut() {
    cut_ = true;
    for (uint32_t rank = 0; rank < workers_wanted_; ++rank) {
      if (workers_[rank] == nullptr) continue;
      if (stall_ == Stall::kWorkerCut && rank != faulty_) continue;
      for (const std::string& engine : servers_[0]->addresses()) {
        network_.Cut(engine, workers_[rank]->address());
      }
    }
  }

  bool IsOver() const {
    if (told_.size() == workers_wanted_) return true;
    for (uint32_t rank = 0; rank < workers_wanted_; ++rank) {
      const bool is_awaited = rank != faulty_ || BlamesAServer() || workers_wanted_ == 1;
      if (!is_awaited) continue;
      if (workers_[rank] == nullptr || !workers_[rank]->IsDone()) return false;
    }
    return true;
  }

  std::string Describe() const {
    std::string text = absl::StrCat("stall ", static_cast<int>(stall_), " of rank ",
                                    faulty_, " from step ", begins_at_, "; ");
    for (uint32_t rank = 0; rank < workers_wanted_; ++rank) {
      const auto& worker = workers_[rank];
      absl::StrAppend(&text, worker ? worker->Describe() : std::string("(no process)"),
                      "; ");
    }
    for (const auto& server : servers_) {
      if (!server->is_configured()) continue;
      const JobProgress progress = server->Progress();
      absl::StrAppend(&text, "server: step ", progress.step, ", unseeded ",
                      progress.unseeded, ", completed ", progress.completed);
      for (const JobProgress::Member& member : progress.members) {
        absl::StrAppend(&text, ", rank ", member.rank, " owes ", member.owed, " waits ",
                        member.waits, " moved ", member.moved);
      }
      absl::StrAppend(&text, "; ");
    }
    for (const auto& [rank, status] : told_) {
      absl::StrAppend(&text, "rank ", rank, " was told ", status.ToString(), "; ");
    }
    for (const JobView& job : control_.View().jobs) {
      absl::StrAppend(&text, "job ", std::string(JobPhaseName(job.phase)), " in epoch ",
                      job.epoch, " (", job.reason, ")");
    }
    return text;
  }

  std::mt19937_64 random_;
  const Stall stall_;
  const uint32_t workers_wanted_;
  const uint32_t faulty_;
  const uint64_t begins_at_;
  const JobSpec job_;
  const CodecRegistry codecs_;
  EventQueue events_;
  InprocNetwork network_;
  const Timeouts timeouts_;
  ControlPlane control_;
  Reference reference_;
  Traffic traffic_;
  std::map<uint32_t, Disk> disks_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::array<std::unique_ptr<WorkerProcess>, kMaxSimWorkers> workers_;
  std::vector<std::unique_ptr<WorkerProcess>> graveyard_;
  std::map<uint32_t, absl::Status> told_;
  bool cut_ = false;
  uint64_t made_ = 0;
  absl::Duration moved_at_ = {};
  std::string violation_;
};

}  // namespace

absl::Status SimulateStall(uint64_t seed) { return StallRun(seed).Execute(); }

}  // namespace syncline::sim
