#include "tests/sim/simulation.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/event_queue.h"
#include "comm/base/status.h"
#include "comm/transport/inproc/inproc.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/job_modes.h"
#include "tests/sim/random_job.h"
#include "tests/sim/random_network.h"
#include "tests/sim/reference.h"
#include "tests/sim/run_progress.h"
#include "tests/sim/server_hosts.h"
#include "tests/sim/server_process.h"
#include "tests/sim/worker_process.h"

namespace syncline::sim {
namespace {

constexpr uint32_t kLeaver = 1;
constexpr absl::Duration kEarly = absl::Milliseconds(400);  // the time of early faults
constexpr absl::Duration kFailureTimeout = absl::Seconds(1);
// A step takes some milliseconds without failures, and much longer on slow links.
constexpr absl::Duration kDeadlineOfStep = absl::Minutes(1);

// Compares bits, but -0 equals 0: a delta without a value may keep -0 or make it 0.
bool SameBits(float a, float b) {
  return a == b || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

class Run {
 public:
  Run(uint64_t seed, std::string_view mode, Restarts restarts, Fault fault)
      : random_(seed),
        apart_(~seed),
        restarts_(restarts),
        fault_(fault),
        size_(FitToMode(mode, restarts, RandomSize(random_))),
        job_(MadeDurable(FitToMode(mode, random_, RandomJob(random_, size_)), restarts)),
        skipping_(RandomSkipping(random_, job_)),
        rating_(RandomRating(random_, job_)),
        codecs_(CodecRegistry::Builtin()),
        network_(events_, RandomNetwork(random_)),
        cables_(RandomCables(random_, size_)),
        timeouts_(Timeouts::Derive(kFailureTimeout)),
        control_(events_,
                 {.timeouts = timeouts_,
                  .expected_servers = static_cast<uint32_t>(size_.engines.size()),
                  .patience = DefaultPatience(kFailureTimeout)},
                 random_()),
        reference_(job_),
        progress_(events_, random_),
        workers_(size_.workers),
        gone_(size_.workers),
        outside_(size_.workers),
        deaths_(size_.workers) {}

  absl::Status Execute();
  std::string DescribeJob() const {
    return absl::StrCat(Describe(job_, size_), " updates=", updates_, " paces=", paces_,
                        " faults=", faults_, " exclusions=", exclusions_,
                        " breaks=", breaks_, " barriers=", barrier_every_,
                        pulls_ ? " pulls " : " ", control_.failure());
  }

 private:
  void PlanServerCrashes();
  void LayCables(uint32_t rank);
  void LayCables();
  uint64_t HeldVersion(uint32_t block) const;
  uint32_t RandomRank() { return static_cast<uint32_t>(random_() % size_.workers); }
  double ShareOfSteps() const;
  void BreakConnection();
  absl::Status CheckTraffic() const;
  void StartWorker(uint32_t rank);
  void OnWorkerEnd(uint32_t rank, const absl::Status& status);
  // Whether all workers are done. In mode asp they must have the final weights.
  bool IsOver();
  void PlanFaults();
  void PlanBreaks();
  void PlanCrashes();
  void PlanUpdates();
  void Order(const UpdateJob& update);
  // Whether some versions may never reach every worker.
  bool SkipsVersions() const {
    return job_.training.sync().skips_versions() || paces_ > 0;
  }
  void PlanExclusions();
  void PlanBarriers();
  void KillWorker(uint32_t rank);
  void FreezeWorker(uint32_t rank);
  bool AllDone() const;
  absl::Status Check();
  absl::Status CheckVersion(uint32_t block) const;
  absl::Status CheckBlock(uint32_t block, std::span<const float> expected,
                          std::span<const float> views);
  std::string DescribeRun() const;

  Random random_, apart_;
  const Restarts restarts_;
  const Fault fault_;
  const RunSize size_;
  const JobSpec job_;
  const Skipping skipping_;
  const Rating rating_;
  const CodecRegistry codecs_;
  EventQueue events_;
  InprocNetwork network_;
  const Cables cables_;
  Traffic traffic_;
  const Timeouts timeouts_;
  ControlPlane control_;
  Reference reference_;
  RunProgress progress_;
  std::optional<ServerHosts> servers_;  // once the run begins
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::vector<bool> gone_;
  std::vector<bool> outside_;  // not members; the run does not wait for them
  std::vector<int> deaths_;
  bool has_settled_ = false;
  int faults_ = 0;
  int breaks_ = 0, exclusions_ = 0;   // numbers of broken connections, excluded workers
  int updates_ = 0;                   // number of updates of options
  int paces_ = 0;                     // number of updates of the staleness
  std::optional<uint64_t> leave_at_;  // the step before which kLeaver leaves
  uint64_t barrier_every_ = 0;        // number of steps between barriers; 0: none
  bool pulls_ = false;
  std::vector<std::unique_ptr<WorkerProcess>>
      graveyard_;  // events may still point to them
};

void Run::StartWorker(uint32_t rank) {
  if (workers_[rank] != nullptr || gone_[rank]) return;
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
          .target_step = size_.steps,
          .leave_at = rank == kLeaver ? leave_at_ : std::nullopt,
          .skipping = skipping_,
          .rating = rating_,
          .slowness = SkipsVersions() && rank == 0 ? 8.0 : 1.0,
          .barrier_every = barrier_every_,
          .pulls = pulls_,
          .runs_ahead = fault_ == Fault::kRunsAhead ? 1u : 0u,
          .hears_no_less = fault_ == Fault::kHearsNoLess,
          .pushes_twice = fault_ == Fault::kPushesTwice,
          .seed = random_(),
          .on_end = [this](uint32_t dead,
                           const absl::Status& status) { OnWorkerEnd(dead, status); }},
      rank);
  LayCables(rank);
}

void Run::LayCables(uint32_t rank) {
  const std::string worker = workers_[rank]->address();
  for (size_t i = 0; i < servers_->places(); ++i) {
    if (servers_->at(i) == nullptr) continue;
    for (const std::string& engine : servers_->at(i)->addresses()) {
      network_.SetRate(worker, engine, cables_[rank][i].up);
      network_.SetRate(engine, worker, cables_[rank][i].down);
    }
  }
}

void Run::LayCables() {
  for (uint32_t rank = 0; rank < size_.workers; ++rank) {
    if (servers_ && workers_[rank] != nullptr) LayCables(rank);
  }
}

uint64_t Run::HeldVersion(uint32_t block) const {
  uint64_t held = 0;
  for (const auto& worker : workers_) {
    if (worker != nullptr) held = std::max(held, worker->version_of(block));
  }
  return held;
}

// Breaks a connection in both directions, or in one, which the other does not notice.
void Run::BreakConnection() {
  const uint32_t rank = RandomRank();
  const ServerProcess* const broken = servers_->at(random_() % servers_->places());
  const auto ways = std::uniform_int_distribution<int>(0, 2)(random_);
  if (workers_[rank] == nullptr || broken == nullptr) return;
  const std::vector<std::string> engines = broken->addresses();
  const std::string worker = workers_[rank]->address();
  const std::string& engine = engines[random_() % engines.size()];
  if (ways != 1) network_.Break(worker, engine);
  if (ways != 0) network_.Break(engine, worker);
}

// The worker was dropped or refused, and its launcher restarts it, or it has left. Then
// it is gone, or comes back as a new worker.
void Run::OnWorkerEnd(uint32_t rank, const absl::Status& status) {
  // A push was of a wrong step, or invalid.
  if (absl::IsInvalidArgument(status)) reference_.Violate(std::string(status.message()));
  const bool has_left = status.ok() && workers_[rank] && workers_[rank]->IsLeaving();
  if (has_left) leave_at_.reset();
  gone_[rank] = has_left && faults_ == 0;  // with faults, a new start may need it
  KillWorker(rank);
}

void Run::KillWorker(uint32_t rank) {
  if (workers_[rank] == nullptr) return;
  ++deaths_[rank];
  workers_[rank]->Kill();
  graveyard_.push_back(std::move(workers_[rank]));
  events_.After(absl::Milliseconds(Between(random_, 1, 1500)),
                [this, rank] { StartWorker(rank); });
}

void Run::FreezeWorker(uint32_t rank) {
  if (workers_[rank] == nullptr) return;
  workers_[rank]->Freeze();
  WorkerProcess* const frozen = workers_[rank].get();
  events_.After(absl::Milliseconds(Between(random_, 10, 2000)), [this, rank, frozen] {
    if (workers_[rank].get() == frozen) frozen->Thaw();
  });
}

void Run::PlanFaults() {
  faults_ = std::uniform_int_distribution<int>(0, 3)(random_);
  // A decision could include a dead worker's contribution that only a dead server had.
  if (ServersDie(restarts_) && NeedsDecisions(job_)) faults_ = 0;
  // If all workers are gone before the job begins, its backups are empty.
  if (OutlivesAll(restarts_)) {
    faults_ = std::min(faults_, static_cast<int>(size_.workers) - 1);
  }
  for (int i = 0; i < faults_; ++i) {
    const uint32_t rank = RandomRank();
    const bool kills = !OneIn(random_, 3);
    progress_.Somewhere(
        kEarly, [this, rank, kills] { kills ? KillWorker(rank) : FreezeWorker(rank); });
  }
}

void Run::PlanBreaks() {
  if (OneIn(random_, 3)) return;
  breaks_ = std::uniform_int_distribution<int>(0, 5)(random_);
  for (int i = 0; i < breaks_; ++i) {
    progress_.Somewhere(kEarly, [this] { BreakConnection(); });
  }
}

// Crashes the coordinator before the job begins, while it runs, and during a change.
void Run::PlanCrashes() {
  const bool dies = restarts_ == Restarts::kCoordinator || restarts_ == Restarts::kBoth;
  if (!dies) return;
  for (uint64_t crashes = 1 + random_() % 3; crashes > 0; --crashes) {
    const auto early = kEarly * (1 << (random_() % 4));
    const auto outputs = std::uniform_int_distribution<int>(0, 12)(random_);
    const auto downtime = absl::Milliseconds(Between(random_, 1, 2000));
    progress_.Somewhere(early, [=, this] { control_.CrashAfter(outputs, downtime); });
  }
}

// Plans updates of options in the middle of the run.
void Run::PlanUpdates() {
  if (TakesUpdates(job_) && OneIn(random_, 3)) {
    updates_ = std::uniform_int_distribution<int>(1, 3)(random_);
    for (int i = 0; i < updates_; ++i) {
      Order(RandomUpdate(random_, job_, size_.steps));
    }
  }
  if (job_.training.mode.name != "ssp" || OneIn(random_, 3)) return;
  paces_ = std::uniform_int_distribution<int>(1, 4)(random_);
  for (int i = 0; i < paces_; ++i) Order(RandomStaleness(random_, job_));
}

void Run::Order(const UpdateJob& update) {
  progress_.Somewhere(kEarly, [this, update] { control_.Update(update); });
}

void Run::PlanExclusions() {
  if (fault_ != Fault::kNone || !OneIn(apart_, 3)) return;
  if (ServersDie(restarts_) && NeedsDecisions(job_)) return;  // see PlanFaults
  const uint32_t least = leave_at_ ? faults_ + 2u : 0u;  // the last member may not leave
  exclusions_ = int(std::min<uint64_t>(1 + apart_() % 2, size_.workers - least));
  for (int i = 0; i < exclusions_; ++i) {
    progress_.Somewhere(kEarly, [this, rank = uint32_t(apart_() % size_.workers)] {
      if (control_.Exclude(job_.name, rank)) ++deaths_[rank];
    });
  }
}

// Programs number barriers differently while members change, and with a quorum.
void Run::PlanBarriers() {
  const bool is_steady =
      faults_ + exclusions_ == 0 && !leave_at_ && !ServersDie(restarts_);
  if (!is_steady || job_.training.sync().has_quorum() || !OneIn(random_, 2)) return;
  barrier_every_ = 1 + random_() % 4;
}

// Plans that one server dies or all at once, some of them several times.
void Run::PlanServerCrashes() {
  if (!ServersDie(restarts_)) return;
  // The last decision would be lost with all processes that know it.
  if (restarts_ == Restarts::kBoth && NeedsDecisions(job_)) return;
  servers_->PlanCrashes(restarts_);
}

// Whether all workers are done, and all processes are there to be compared.
bool Run::AllDone() const {
  if (!servers_->AllAreThere()) return false;
  for (uint32_t rank = 0; rank < size_.workers; ++rank) {
    const auto& worker = workers_[rank];
    const bool is_absent = gone_[rank] || outside_[rank];
    if (!is_absent && (worker == nullptr || !worker->IsDone())) return false;
  }
  return true;
}

bool Run::IsOver() {
  const SyncMode mode = job_.training.sync();
  // A worker that died often is admitted after a step, unless the others are done.
  const auto is_done = [](const auto& one) { return one != nullptr && one->IsDone(); };
  for (uint32_t rank = 0; rank < size_.workers; ++rank) {
    const bool may_wait = SkipsVersions() || deaths_[rank] > 1;
    const bool is_outside = may_wait && workers_[rank] != nullptr &&
                            !workers_[rank]->incarnation() &&
                            (outside_[rank] || std::ranges::any_of(workers_, is_done));
    if (outside_[rank] && !is_outside) has_settled_ = false;
    outside_[rank] = is_outside;
  }
  if (!AllDone()) return false;
  if (!mode.is_async()) return true;
  if (std::exchange(has_settled_, true)) return true;
  for (const auto& worker : workers_) {
    if (worker != nullptr) worker->SettleAgain();
  }
  return false;
}

double Run::ShareOfSteps() const {
  // In mode asp each contribution makes a step.
  const uint64_t of_step = job_.training.sync().is_async() ? size_.workers : 1;
  return static_cast<double>(reference_.version(0)) /
         static_cast<double>(size_.steps * of_step);
}

absl::Status Run::Execute() {
  servers_.emplace(
      ServerHosts::Parts{.events = events_,
                         .network = network_,
                         .control = control_,
                         .reference = reference_,
                         .traffic = traffic_,
                         .codecs = codecs_,
                         .random = random_,
                         .progress = progress_,
                         .size = size_,
                         .heartbeat_interval = timeouts_.heartbeat_interval,
                         .fault = fault_,
                         .lasting = restarts_ == Restarts::kTogether ? job_.name : "",
                         .needs_decisions = NeedsDecisions(job_),
                         .held = [this](uint32_t block) { return HeldVersion(block); },
                         .on_new_process = [this] { LayCables(); }});
  for (uint32_t rank = 0; rank < size_.workers; ++rank) {
    events_.After(absl::Milliseconds(Between(random_, 0, 50)),
                  [this, rank] { StartWorker(rank); });
  }
  if (fault_ == Fault::kOldTerm) control_.ForgetLastRecord();
  PlanFaults();
  PlanBreaks();
  PlanCrashes();
  PlanServerCrashes();
  // The last member must not leave, because the job would be over.
  if (faults_ + 2u <= size_.workers && OneIn(random_, 2)) {
    leave_at_ = std::uniform_int_distribution<uint64_t>(1, size_.steps - 1)(random_);
  }
  PlanUpdates();
  PlanExclusions();
  PlanBarriers();
  pulls_ = OneIn(random_, 3) && !job_.HasBackups() && !SkipsVersions();
  const bool outlives_all = OutlivesAll(restarts_);
  const auto has_failed = [&] { return outlives_all && !control_.failure().empty(); };
  while (!IsOver() && reference_.violation().empty() && !has_failed()) {
    if (events_.now() > size_.steps * kDeadlineOfStep || !events_.RunNext()) {
      return absl::InternalError(absl::StrCat("no end in sight: ", DescribeRun()));
    }
    progress_.Reached(ShareOfSteps());
  }
  return Check();
}

absl::Status Run::Check() {
  if (OutlivesAll(restarts_) && !control_.failure().empty()) {
    return absl::InternalError(absl::StrCat("the job failed: ", control_.failure()));
  }
  if (!reference_.violation().empty()) return absl::InternalError(reference_.violation());
  for (uint32_t block = 0; block < reference_.blocks().size(); ++block) {
    SYNCLINE_RETURN_IF_ERROR(CheckVersion(block));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckTraffic());
  for (uint32_t rank = 0; rank < size_.workers; ++rank) {
    if (gone_[rank] || outside_[rank]) continue;
    reference_.CheckAcknowledged(rank, *workers_[rank]->incarnation());
  }
  const Reference::Model model = reference_.After(size_.steps);
  if (!reference_.violation().empty()) return absl::InternalError(reference_.violation());
  for (uint32_t block = 0; block < reference_.blocks().size(); ++block) {
    const BlockRange& range = reference_.blocks()[block];
    const auto of_block = [&](const std::vector<std::vector<float>>& tensors) {
      return std::span(tensors[range.tensor])
          .subspan(range.first_element, range.elements);
    };
    SYNCLINE_RETURN_IF_ERROR(
        CheckBlock(block, of_block(model.weights), of_block(model.views)));
  }
  for (size_t i = 0; i < servers_->places(); ++i) {
    SYNCLINE_RETURN_IF_ERROR(servers_->at(i)->CheckRecords());
  }
  return absl::OkStatus();
}

absl::Status Run::CheckTraffic() const {
  if (updates_ + paces_ > 0) return absl::OkStatus();
  const int returns = faults_ + exclusions_;
  return traffic_.Check({.is_async = job_.training.sync().is_async(),
                         .pulls = pulls_,
                         .returns = returns,
                         .absences = returns + control_.crashes() + servers_->losses()});
}

absl::Status Run::CheckVersion(uint32_t block) const {
  const bool is_frozen = job_.tensors[reference_.blocks()[block].tensor].group.frozen;
  if (is_frozen || job_.training.sync().is_async()) return absl::OkStatus();
  if (reference_.version(block) != size_.steps) {
    return absl::InternalError(absl::StrCat("block ", block, " made ",
                                            reference_.version(block),
                                            " steps instead of ", size_.steps));
  }
  return absl::OkStatus();
}

absl::Status Run::CheckBlock(uint32_t block, std::span<const float> expected,
                             std::span<const float> views) {
  const BlockRange& range = reference_.blocks()[block];
  const std::span<const float> master = servers_->OwnerOf(block).block_weights(block);
  for (uint32_t i = 0; i < range.elements; ++i) {
    if (!SameBits(master[i], expected[i])) {
      return absl::InternalError(absl::StrCat("the shard holds ", master[i], " in block ",
                                              block, " element ", i, ", the reference ",
                                              expected[i]));
    }
    const float view = views[i];
    for (uint32_t rank = 0; rank < size_.workers; ++rank) {
      if (gone_[rank] || outside_[rank]) continue;
      const float held = workers_[rank]->weights()[range.tensor][range.first_element + i];
      if (!SameBits(held, view)) {
        return absl::InternalError(absl::StrCat("worker ", rank, " holds ", held,
                                                " in block ", block, " element ", i,
                                                ", the reference ", view));
      }
    }
  }
  return absl::OkStatus();
}

std::string Run::DescribeRun() const {
  std::string text;
  for (const auto& worker : workers_) {
    absl::StrAppend(&text, worker ? worker->Describe() : std::string("(no process)"),
                    "; ");
  }
  for (const JobView& job : control_.View().jobs) {
    absl::StrAppend(&text, "job ", std::string(JobPhaseName(job.phase)), " in epoch ",
                    job.epoch, " (", job.reason, ")");
  }
  return text;
}

}  // namespace

absl::Status Simulate(uint64_t seed, std::string_view mode, Restarts restarts,
                      Fault fault) {
  Run run(seed, mode, restarts, fault);
  const absl::Status status = run.Execute();
  if (status.ok()) return status;
  return absl::InternalError(
      absl::StrCat(std::string(status.message()), "\n  ", run.DescribeJob()));
}

}  // namespace syncline::sim
