#include "server/coordinator/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/coordinator/placement.h"

namespace syncline {
namespace {

constexpr absl::Duration kSayWaitingEvery = absl::Seconds(1);
constexpr size_t kMissingRanksShown = 8;

absl::Status Refused(const std::string& what) {
  return WithFailure(absl::FailedPreconditionError(what), Failure::kJobRefused);
}

void AppendReason(std::string& reasons, const std::string& reason) {
  absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", reason);
}

std::unique_ptr<const TrainingPlan> PlanOf(const JobSpec& spec) {
  auto plan = TrainingPlan::Create(spec.training, spec.Trained());
  SYNCLINE_CHECK(plan.ok());  // ValidateJob has made the same plan
  return *std::move(plan);
}

std::set<uint32_t> TrainedBlocks(const JobSpec& spec) {
  std::set<uint32_t> trained;
  const std::vector<BlockRange> blocks = spec.Blocks();
  for (uint32_t block = 0; block < blocks.size(); ++block) {
    if (!spec.tensors[blocks[block].tensor].group.frozen) trained.insert(block);
  }
  return trained;
}

}  // namespace

Job::Job(uint32_t id, const WorkerHello& first, const CoordinatorOptions& options,
         Counters& counters)
    : id_(id),
      declared_(first.job),
      spec_(first.job),
      run_id_(first.run_id),
      options_(options),
      counters_(counters),
      plan_(PlanOf(spec_)),
      decisions_(
          spec_.training, TrainedBlocks(spec_),
          plan_->job_reduction() == nullptr ? 0 : plan_->job_reduction()->Figures()) {}

std::string Job::Named(uint32_t rank) const {
  const auto worker = workers_.find(rank);
  if (worker == workers_.end()) return absl::StrCat("worker ", rank);
  return absl::StrCat("worker ", rank, " (", worker->second.name, ")");
}

void Job::ToServers(const CoordinatorBody& body, CoordinatorOutputs& outputs) const {
  for (const JobServer& server : servers_)
    outputs.push_back(ToMember{server.connection, body});
}

// ---- Workers come ----

absl::Status Job::Admit(ConnectionId connection, const WorkerHello& hello,
                        absl::Duration now, CoordinatorOutputs& outputs) {
  if (!run_id_.empty() && !hello.run_id.empty() && run_id_ != hello.run_id) {
    return Refused(absl::StrCat("another run of job '", spec_.name, "' is active with ",
                                workers_.size(),
                                " workers; wait for its end or choose another --job"));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckSameJob(declared_, hello.job));
  if (hello.rank >= kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", hello.rank, ", allowed are 0 to ", kMaxWorkers - 1));
  }
  const bool began = phase_ != Phase::kGathering;
  if (!began && hello.rank >= spec_.workers) {
    return Refused(absl::StrCat("job '", spec_.name, "' begins with ranks 0 to ",
                                spec_.workers - 1, "; rank ", hello.rank,
                                " may join once it runs"));
  }
  if (const auto holder = workers_.find(hello.rank); holder != workers_.end()) {
    if (holder->second.connected) {
      return Refused(absl::StrCat("rank ", hello.rank, " of job '", spec_.name,
                                  "' is held by ", holder->second.name,
                                  "; is another job of this name running?"));
    }
    Forget(hello.rank, absl::StrCat(Named(hello.rank), " came back as a new process"));
  }
  if (workers_.empty() && !began) gathering_since_ = now;
  workers_[hello.rank] = {.connection = connection,
                          .incarnation = counters_.next_incarnation++,
                          .session_key = hello.session_key,
                          .name = hello.name,
                          .heard_at = now,
                          .progressed_at = now};
  if (began) AppendReason(change_reason_, absl::StrCat(Named(hello.rank), " joins"));
  last_waiting_said_ = -absl::InfiniteDuration();
  MaybeChangeEpoch(outputs);
  return absl::OkStatus();
}

void Job::MaybeBegin(const std::vector<JobServer>& servers, CoordinatorOutputs& outputs) {
  if (phase_ != Phase::kGathering || workers_.size() < spec_.workers ||
      servers.size() < options_.expected_servers || servers.empty()) {
    return;
  }
  phase_ = Phase::kConfiguring;
  servers_ = servers;
  uint32_t shards = 0;
  for (const JobServer& server : servers_) {
    shards += static_cast<uint32_t>(server.shard_addresses.size());
  }
  shard_of_block_ = PlaceBlocks(spec_.Blocks(), shards, [this](uint32_t tensor) {
    return plan_->NeedsWholeTensor(tensor);
  });
  uint32_t first_shard = 0;
  for (const JobServer& server : servers_) {
    unconfigured_.insert(server.server);
    outputs.push_back(
        ToMember{server.connection, ConfigureJob{.job = id_,
                                                 .spec = spec_,
                                                 .shard_of_block = shard_of_block_,
                                                 .first_shard = first_shard}});
    first_shard += static_cast<uint32_t>(server.shard_addresses.size());
  }
  reason_ = absl::StrCat("placing ", shard_of_block_.size(), " blocks on ", shards,
                         " shards of ", servers_.size(), " servers");
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", reason_)});
}

void Job::OnConfigured(uint32_t server, CoordinatorOutputs& outputs) {
  if (phase_ != Phase::kConfiguring) return;
  unconfigured_.erase(server);
  if (!unconfigured_.empty()) return;
  phase_ = Phase::kRunning;
  change_reason_ = "the job begins";
  MaybeChangeEpoch(outputs);
}

// ---- Epochs ----

bool Job::MembershipDiffers() const {
  if (workers_.size() != committed_.size()) return true;
  return std::any_of(committed_.begin(), committed_.end(),
                     [this](const MemberRecord& record) {
                       const auto worker = workers_.find(record.rank);
                       return worker == workers_.end() ||
                              worker->second.incarnation != record.incarnation;
                     });
}

void Job::MaybeChangeEpoch(CoordinatorOutputs& outputs) {
  if (phase_ != Phase::kRunning || change_.has_value()) return;
  if (!MembershipDiffers() && !next_training_) return;
  const uint64_t epoch = ++counters_.epochs[spec_.name];
  change_ = Change{.epoch = epoch, .reason = std::exchange(change_reason_, "")};
  change_->training = std::exchange(next_training_, std::nullopt);
  for (const JobServer& server : servers_) change_->unprepared.insert(server.server);
  ToServers(PrepareEpoch{id_, epoch}, outputs);
}

void Job::OnPrepared(uint32_t server, const EpochPrepared& prepared,
                     CoordinatorOutputs& outputs) {
  if (!change_ || prepared.epoch != change_->epoch ||
      change_->unprepared.erase(server) == 0)
    return;
  change_->next_step = std::max(change_->next_step, prepared.next_step);
  if (change_->unprepared.empty()) Commit(outputs);
}

// Who is alive now: also those who came since the change began, not those who died.
void Job::Commit(CoordinatorOutputs& outputs) {
  for (const auto& [rank, worker] : workers_) {
    change_->members.push_back(
        {.rank = rank,
         .incarnation = worker.incarnation,
         .first_step = worker.welcomed ? worker.first_step : change_->next_step,
         .session_key = worker.session_key});
  }
  if (!change_reason_.empty())
    AppendReason(change_->reason, std::exchange(change_reason_, ""));
  for (const JobServer& server : servers_) change_->uncommitted.insert(server.server);
  outputs.push_back(PersistState{});  // the coordinator fills it in
  ToServers(CommitEpoch{.job = id_,
                        .epoch = change_->epoch,
                        .members = change_->members,
                        .reason = change_->reason,
                        .training = change_->training,
                        .training_from = FirstUpdateFrom(change_->next_step)},
            outputs);
}

// An update is made with one set of options, also when several pushes make it.
uint64_t Job::FirstUpdateFrom(uint64_t step) const {
  const uint64_t pushes = spec_.training.accumulate_steps;
  return (step + pushes - 1) / pushes * pushes;
}

absl::StatusOr<uint64_t> Job::Update(const UpdateJob& update,
                                     CoordinatorOutputs& outputs) {
  if (phase_ != Phase::kRunning) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", spec_.name, "' has not begun: ", reason_));
  }
  TrainingSettings next = spec_.training;
  next.optimizer.options = Merge(next.optimizer.options, update.optimizer);
  if (update.schedule) next.schedule = *update.schedule;
  SYNCLINE_RETURN_IF_ERROR(CheckChange(spec_.training, next, spec_.Trained()));
  spec_.training = next;
  next_training_ = next;
  plan_ = PlanOf(spec_);
  AppendReason(change_reason_, "new options");
  MaybeChangeEpoch(outputs);
  // Either it has begun, or it follows the one under way.
  return counters_.epochs.at(spec_.name) + (next_training_ ? 1 : 0);
}

void Job::OnCommitted(uint32_t server, const EpochCommitted& committed,
                      CoordinatorOutputs& outputs) {
  if (!change_ || committed.epoch != change_->epoch ||
      change_->uncommitted.erase(server) == 0)
    return;
  if (change_->uncommitted.empty()) FinishChange(outputs);
}

void Job::FinishChange(CoordinatorOutputs& outputs) {
  const Change change = *std::exchange(change_, std::nullopt);
  committed_ = change.members;
  reason_ = change.reason;
  outputs.push_back(
      LogReason{absl::StrCat("job '", spec_.name, "': epoch ", change.epoch, " with ",
                             committed_.size(), " members: ", change.reason)});
  bool seeder_found = false;
  for (const MemberRecord& record : committed_) {
    const bool is_seeder = record.first_step == 0 && !seeder_found;
    seeder_found = seeder_found || is_seeder;
    const auto found = workers_.find(record.rank);
    if (found == workers_.end() || found->second.incarnation != record.incarnation)
      continue;
    Worker& worker = found->second;
    if (!worker.welcomed) {
      worker.welcomed = true;
      worker.first_step = record.first_step;
      Welcome(worker, is_seeder, outputs);
    } else {
      outputs.push_back(
          ToMember{worker.connection,
                   EpochChanged{.epoch = change.epoch,
                                .members = static_cast<uint32_t>(committed_.size()),
                                .seeder = is_seeder,
                                .reason = change.reason}});
    }
  }
  MaybeReleaseBarrier(outputs);
  MaybeChangeEpoch(outputs);
}

void Job::Welcome(const Worker& worker, bool is_seeder,
                  CoordinatorOutputs& outputs) const {
  WorkerWelcome welcome{.job = id_,
                        .incarnation = worker.incarnation,
                        .session_key = worker.session_key,
                        .epoch = counters_.epochs.at(spec_.name),
                        .first_step = worker.first_step,
                        .seeder = is_seeder,
                        .shard_of_block = shard_of_block_,
                        .members = static_cast<uint32_t>(committed_.size()),
                        .contributions = plan_->contributions()};
  for (const JobServer& server : servers_) {
    welcome.shard_addresses.insert(welcome.shard_addresses.end(),
                                   server.shard_addresses.begin(),
                                   server.shard_addresses.end());
  }
  outputs.push_back(ToMember{worker.connection, std::move(welcome)});
}

// ---- Workers speak, wait and go ----

void Job::OnHeartbeat(uint32_t rank, const Heartbeat& beat, absl::Duration now) {
  Worker& worker = workers_.at(rank);
  worker.heard_at = now;
  const bool moved = beat.step != worker.beat.step || beat.bytes != worker.beat.bytes ||
                     beat.waiting != worker.beat.waiting;
  if (moved) worker.progressed_at = now;
  worker.beat = beat;
}

void Job::OnLeave(uint32_t rank, CoordinatorOutputs& outputs) {
  outputs.push_back(CloseMember{workers_.at(rank).connection, absl::OkStatus()});
  Forget(rank, absl::StrCat(Named(rank), " left"));
  if (workers_.empty()) return End("all workers left", outputs);
  MaybeReleaseBarrier(outputs);
  MaybeChangeEpoch(outputs);
}

void Job::OnDisconnected(uint32_t rank, absl::Duration now) {
  Worker& worker = workers_.at(rank);
  if (!worker.welcomed && phase_ == Phase::kGathering) {
    workers_.erase(rank);
    if (workers_.empty()) phase_ = Phase::kOver;
    return;
  }
  worker.connected = false;
  worker.disconnected_at = now;
}

void Job::Forget(uint32_t rank, const std::string& reason) {
  workers_.erase(rank);
  AppendReason(change_reason_, reason);
}

void Job::DropWorker(uint32_t rank, const std::string& reason,
                     CoordinatorOutputs& outputs) {
  const std::string what =
      absl::StrCat(Named(rank), " was dropped from job '", spec_.name, "': ", reason);
  const Worker& worker = workers_.at(rank);
  if (worker.connected) {
    outputs.push_back(
        CloseMember{worker.connection,
                    absl::AbortedError(absl::StrCat(what, "; connect again to rejoin"))});
  }
  outputs.push_back(LogReason{what});
  Forget(rank, absl::StrCat(Named(rank), ": ", reason));
}

void Job::OnBarrier(uint32_t rank, uint64_t barrier, CoordinatorOutputs& outputs) {
  workers_.at(rank).barrier = barrier;
  MaybeReleaseBarrier(outputs);
}

// Everyone in the committed epoch who is alive must be in a barrier; each is released
// from its own.
void Job::MaybeReleaseBarrier(CoordinatorOutputs& outputs) {
  for (const auto& [rank, worker] : workers_) {
    if (worker.welcomed && !worker.barrier) return;
  }
  for (auto& [rank, worker] : workers_) {
    if (!worker.welcomed) continue;
    outputs.push_back(ToMember{worker.connection, BarrierReleased{*worker.barrier}});
    worker.barrier.reset();
  }
}

void Job::OnFigures(const BlockFigures& figures, CoordinatorOutputs& outputs) {
  if (phase_ != Phase::kRunning || !plan_->NeedsDecision()) return;
  const auto decision = decisions_.Add(figures.block, figures.step, figures.figures);
  if (!decision) return;
  ToServers(StepDecision{.job = id_, .step = figures.step, .decision = *decision},
            outputs);
}

// ---- Time and ends ----

void Job::Tick(absl::Duration now, size_t servers_attached, CoordinatorOutputs& outputs) {
  if (phase_ == Phase::kOver) return;
  if (phase_ == Phase::kGathering) SayWhoIsMissing(now, servers_attached, outputs);
  DropSilent(now, outputs);
  if (!workers_.empty()) {
    memberless_since_.reset();
    return;
  }
  if (phase_ == Phase::kGathering) {
    phase_ = Phase::kOver;
    return;
  }
  if (!memberless_since_) memberless_since_ = now;
  if (now - *memberless_since_ >= options_.timeouts.no_progress) {
    Fail(absl::StrCat("no worker for ",
                      absl::FormatDuration(options_.timeouts.no_progress)),
         outputs);
  }
}

void Job::DropSilent(absl::Duration now, CoordinatorOutputs& outputs) {
  std::vector<Lease> leases;
  for (const auto& [rank, worker] : workers_) {
    leases.push_back({.rank = rank,
                      .connected = worker.connected,
                      .waiting = worker.beat.waiting,
                      .heard_at = worker.heard_at,
                      .progressed_at = worker.progressed_at,
                      .disconnected_at = worker.disconnected_at});
  }
  const std::vector<Drop> drops = ComputeDrops(now, leases, options_.timeouts);
  for (const Drop& drop : drops) DropWorker(drop.rank, drop.reason, outputs);
  if (drops.empty()) return;
  MaybeReleaseBarrier(outputs);
  MaybeChangeEpoch(outputs);
}

void Job::SayWhoIsMissing(absl::Duration now, size_t servers_attached,
                          CoordinatorOutputs& outputs) {
  if (now - last_waiting_said_ < kSayWaitingEvery) return;
  last_waiting_said_ = now;
  const std::string since =
      absl::StrCat(absl::ToInt64Seconds(now - gathering_since_), " s");
  if (workers_.size() >= spec_.workers) {
    reason_ = absl::StrCat("waiting for server ", servers_attached + 1, " of ",
                           options_.expected_servers, ", ", since);
  } else {
    std::vector<uint32_t> missing;
    for (uint32_t rank = 0; rank < spec_.workers && missing.size() <= kMissingRanksShown;
         ++rank) {
      if (!workers_.contains(rank)) missing.push_back(rank);
    }
    const bool shows_all = missing.size() <= kMissingRanksShown;
    reason_ = absl::StrCat(
        "waiting for worker ", workers_.size() + 1, " of ", spec_.workers, ", ", since,
        shows_all ? absl::StrCat(" (missing: rank ", absl::StrJoin(missing, ", "), ")")
                  : "");
  }
  for (const auto& [rank, worker] : workers_) {
    outputs.push_back(ToMember{worker.connection, Waiting{reason_}});
  }
}

void Job::OnServerLost(uint32_t server, CoordinatorOutputs& outputs) {
  const auto lost = std::find_if(servers_.begin(), servers_.end(),
                                 [&](const JobServer& s) { return s.server == server; });
  if (phase_ == Phase::kOver || lost == servers_.end()) return;
  const std::string name = lost->name;
  servers_.erase(lost);
  Fail(absl::StrCat("server ", server, " (", name, ") is lost, and its weights with it"),
       outputs);
}

void Job::Fail(const std::string& reason, CoordinatorOutputs& outputs) {
  failed_ = true;
  for (const auto& [rank, worker] : workers_) {
    outputs.push_back(ToMember{worker.connection, JobFailed{reason}});
    outputs.push_back(CloseMember{
        worker.connection, WithFailure(absl::UnavailableError(absl::StrCat(
                                           "job '", spec_.name, "' failed: ", reason)),
                                       Failure::kRetryable)});
  }
  workers_.clear();
  End(reason, outputs);
}

void Job::End(const std::string& reason, CoordinatorOutputs& outputs) {
  phase_ = Phase::kOver;
  reason_ = reason;
  ToServers(DropJob{id_, reason}, outputs);
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "' is over: ", reason)});
}

}  // namespace syncline
