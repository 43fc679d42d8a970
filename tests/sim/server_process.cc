#include "tests/sim/server_process.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "server/machine/server_progress.h"

namespace syncline::sim {
namespace {

// Removes the engine from `waiting`, and returns whether it was the last.
bool WasLast(std::set<uint32_t>& waiting, uint32_t engine) {
  return waiting.erase(engine) > 0 && waiting.empty();
}

}  // namespace

ServerProcess::ServerProcess(Parts parts, std::string name)
    : parts_(std::move(parts)),
      name_(std::move(name)),
      machine_({.engines = parts_.engines,
                .name = name_,
                .has_journal_directory = parts_.host_disk != nullptr,
                .is_stand_in = parts_.stand_in.has_value()}),
      random_(parts_.seed),
      session_key_(random_()) {
  parts_.disk.shards.resize(parts_.engines);
  for (uint32_t i = 0; i < parts_.engines; ++i) {
    engines_.push_back(std::make_unique<ServerEngine>(ServerEngine::Parts{
        .events = parts_.events,
        .network = parts_.network,
        .reference = parts_.reference,
        .traffic = parts_.traffic,
        .codecs = parts_.codecs,
        .disk = parts_.disk.shards[i],
        .seed = random_(),
        .fault = parts_.fault,
        .on_restored = parts_.on_restored,
        .on_output = [this, i](const ShardOutput& output) { OnOutput(i, output); },
        .on_backed_up =
            [this, i](uint64_t session_key) {
              Tell(machine_.Report(BackupFilled{i, job_, session_key}));
            },
        .on_backup_lost =
            [this](uint64_t key, const std::string& why) {
              if (configured_) Tell(machine_.Report(BackupFailed{job_, key, why}));
            },
        .on_snapshot = parts_.on_snapshot,
        .on_pruned = parts_.on_pruned,
        .on_whole =
            [this, i] {
              without_journal_.erase(i);
              if (WasLast(begins_journal_, i)) OnWhole();
            },
        .on_lost_sync = parts_.on_lost_sync,
        .on_journal_ended = [this] { OnJournalEnded(); }}));
  }
  Attach();
  parts_.control.Send(connection_, MakeHello());
  Beat();
}

void ServerProcess::Attach() {
  connection_ = parts_.control.Attach(
      {.on_message = [this](const CoordinatorBody& body) { OnControl(body); },
       // The coordinator still considers the previous process alive.
       .on_end =
           [this](const absl::Status&) {
             if (parts_.stand_in) return PerformAll(machine_.Apply(LinkLost{}));
             SYNCLINE_CHECK(!machine_.identity());
             After(parts_.heartbeat_interval, [this] { OnLost(); });
           },
       .on_lost = [this] { OnLost(); }});
}

void ServerProcess::After(absl::Duration delay, std::function<void()> fn) {
  parts_.events.After(delay, [alive = alive_, fn = std::move(fn)] {
    if (*alive) fn();
  });
}

void ServerProcess::Kill() {
  *alive_ = false;
  parts_.control.Break(connection_);
  for (const auto& engine : engines_) engine->Kill();
}

void ServerProcess::EndJournal() {
  if (!configured_ || !without_journal_.empty()) return;
  without_journal_ = AllEngines();
  ++journal_endings_;
  for (const auto& engine : engines_) engine->EndJournal();
}

void ServerProcess::BeginJournalAnew() {
  if (!configured_) return;
  for (const auto& engine : engines_) engine->BeginJournalAnew();
}

void ServerProcess::FailSyncs() {
  for (const auto& engine : engines_) engine->FailSync();
}

bool ServerProcess::HasSynced() const {
  return without_journal_.empty() &&
         std::ranges::any_of(parts_.disk.shards,
                             [](const ShardDisk& disk) { return disk.synced > 0; });
}

ServerEngine* ServerProcess::EngineOf(uint32_t block) const {
  for (const auto& engine : engines_) {
    if (engine->Owns(block)) return engine.get();
  }
  return nullptr;
}

std::span<const float> ServerProcess::block_weights(uint32_t block) const {
  return EngineOf(block)->shard().block_weights(block);
}

std::vector<std::string> ServerProcess::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& engine : engines_) addresses.push_back(engine->address());
  return addresses;
}

absl::Status ServerProcess::CheckRecords() {
  for (const auto& engine : engines_) {
    SYNCLINE_RETURN_IF_ERROR(engine->CheckRecords());
  }
  return absl::OkStatus();
}

// ---- Messages to the coordinator ----

void ServerProcess::OnLost() {
  Attach();
  parts_.control.Send(connection_, MakeHello());
  for (MemberBody& said : machine_.Unanswered()) Tell(std::move(said));
}

void ServerProcess::Tell(std::optional<MemberBody> said) {
  if (said) parts_.control.Send(connection_, *std::move(said));
}

ServerHello ServerProcess::MakeHello() const {
  ServerHello hello = {.name = name_,
                       .shard_addresses = addresses(),
                       .lanes = "inproc",
                       .identity = machine_.identity(),
                       .held = machine_.Held()};
  hello.stand_in = parts_.stand_in;
  hello.session_key = session_key_;
  hello.feeds_two_backups = true;
  for (HeldJob& held : hello.held) {
    if (Has(held.job) && HasRun()) held.run = "run";
  }
  if (!parts_.disk.job.empty()) {
    JournaledRun run = {parts_.disk.job, "run", {}};
    for (uint32_t i = 0; i < parts_.engines; ++i) {
      run.shards.push_back(parts_.disk.first_shard + i);
    }
    hello.journals.push_back(std::move(run));
  }
  if (parts_.host_disk != nullptr) ListJournals(hello);
  return hello;
}

void ServerProcess::Beat() {
  Heartbeat beat{.step = 0};
  for (const auto& engine : engines_) beat.bytes += engine->bytes();
  if (configured_) beat.jobs.push_back(Progress());
  parts_.control.Send(connection_, std::move(beat));
  After(parts_.heartbeat_interval, [this] { Beat(); });
}

JobProgress ServerProcess::Progress() {
  JobProgress progress{.job = job_};
  for (const auto& engine : engines_) {
    AddProgress(engine->Progress(), progress);
    if (const auto backup = engine->backup()) progress.backup_bytes += backup->bytes;
  }
  return progress;
}

// ---- Messages of the coordinator ----

void ServerProcess::OnControl(const CoordinatorBody& body) {
  if (const auto* configure = std::get_if<ConfigureJob>(&body)) ordered_ = *configure;
  const auto* commit = std::get_if<CommitEpoch>(&body);
  if (commit != nullptr && commit->training) {
    parts_.reference.Changed(commit->epoch, *commit->training, commit->training_from);
  }
  TakePlaceIfTold(body);
  PerformAll(machine_.Apply(body));
}

// Only the server that has the place is told of steps to come.
void ServerProcess::TakePlaceIfTold(const CoordinatorBody& body) {
  const bool is_told = std::holds_alternative<PrepareEpoch>(body) ||
                       std::holds_alternative<CommitEpoch>(body) ||
                       std::holds_alternative<StepDecision>(body);
  if (!is_told || !takes_over_) return;
  parts_.on_takes_place();
  takes_over_ = false;
  for (const auto& engine : engines_) engine->TakePlace();
}

// ---- What the machine orders ----

void ServerProcess::PerformAll(const ServerOutputs& outputs) {
  for (const ServerOutput& output : outputs) {
    std::visit([this](const auto& order) { this->Perform(order); }, output);
  }
}

void ServerProcess::Perform(const Say& say) { Tell(say.body); }

void ServerProcess::Perform(const Misdirected& /*message*/) {
  SYNCLINE_CHECK(false);  // the coordinator says nothing to servers that is for workers
}

// Taking a job's memory takes time, and orders that come meanwhile find no shards.
void ServerProcess::Perform(const BuildShards& build) {
  building_ = build;
  const int micros = std::uniform_int_distribution<int>(10, 30000)(random_);
  After(absl::Microseconds(micros), [this, order = build.order, configure = *ordered_] {
    if (building_ && building_->order == order) Configure(order, configure);
  });
}

void ServerProcess::Configure(uint64_t order, const ConfigureJob& configure) {
  building_.reset();
  const JobSpec& spec = configure.declared->spec;
  job_ = configure.job;
  first_shard_ = configure.first_shard;
  ForgetJournal();
  has_given_up_ = false;
  const absl::StatusOr<uint64_t> step = Build(configure);
  configured_ = step.ok();
  const bool is_restored = !configure.restore_run.empty();
  if (is_restored && spec.HasBackups() && spec.IsJournaled()) machine_.ExpectBackup(job_);
  PerformAll(machine_.Apply(ShardsBuilt{job_, order, step.status(), step.value_or(0)}));
}

// Returns the lowest version of its trained blocks.
absl::StatusOr<uint64_t> ServerProcess::Build(const ConfigureJob& configure) {
  const JobSpec& spec = configure.declared->spec;
  if (parts_.host_disk != nullptr && !configure.backup) {
    SYNCLINE_RETURN_IF_ERROR(OpenJournal(configure));
  } else if (configure.restore_run.empty()) {
    parts_.disk.job = spec.IsJournaled() ? spec.name : "";
    parts_.disk.first_shard = configure.first_shard;
  }
  takes_records_ = configure.backup.has_value();
  uint64_t step = ~uint64_t{0};
  for (uint32_t i = 0; i < parts_.engines; ++i) {
    SYNCLINE_ASSIGN_OR_RETURN(
        const uint64_t begins,
        engines_[i]->Configure(configure, configure.first_shard + i));
    step = std::min(step, begins);
  }
  return step;
}

void ServerProcess::Perform(const DropShards& drop) {
  if (building_ && drop.job == building_->job) building_.reset();
  if (drop.job == job_) ForgetJob();
}

void ServerProcess::Perform(const DropAllShards& /*drop*/) {
  building_.reset();
  ForgetJob();
}

void ServerProcess::ForgetJob() {
  configured_ = takes_records_ = takes_over_ = false;
  without_journal_.clear();
  ForgetJournal();
  for (const auto& engine : engines_) engine->Drop();
}

// A stand-in's node ends, and with it its link.
void ServerProcess::Perform(const EndNode& /*end*/) {
  parts_.control.Break(connection_);
  PerformAll(machine_.Apply(LinkLost{}));
}

void ServerProcess::Perform(const ToShards& order) {
  if (!Has(order.job)) return;
  const auto* prepare = std::get_if<ShardPrepare>(&order.input);
  if (prepare == nullptr || parts_.fault != Fault::kNoFence) return RunAll(order.input);
  // A planted fault: the shards do not hear that they must make no further steps.
  for (uint32_t i = 0; i < parts_.engines; ++i) {
    const uint64_t step = engines_[i]->shard().Progress().step;
    OnOutput(i, ShardPrepared{prepare->epoch, step});
  }
}

void ServerProcess::RunAll(const ShardInput& input) {
  for (const auto& engine : engines_) engine->Run(input);
}

// ---- Answers of the engines ----

std::set<uint32_t> ServerProcess::AllEngines() const {
  std::set<uint32_t> all;
  for (uint32_t i = 0; i < parts_.engines; ++i) all.insert(i);
  return all;
}

void ServerProcess::OnOutput(uint32_t engine, const ShardOutput& output) {
  Tell(machine_.Report(EngineOutput{engine, job_, output, HasRun() ? "run" : ""}));
}

// ---- Backups ----

void ServerProcess::Perform(const StartStandIn& stand_in) {
  parts_.on_hold(stand_in.hold);
}

void ServerProcess::Perform(const SendRecords& records) {
  if (!Has(records.at.job)) return;
  for (size_t i = 0; i < engines_.size(); ++i) {
    engines_[i]->SendRecords(records.at.addresses[i], records.at);
  }
}

void ServerProcess::Perform(const StopRecords& records) {
  if (!Has(records.job)) return;
  for (const auto& engine : engines_) engine->StopRecords(records.session_key);
}

void ServerProcess::GoOnWithoutBackup() {
  for (const auto& engine : engines_) engine->StopRecords(0);
}

void ServerProcess::GiveUpPlace() {
  has_given_up_ = true;
  for (const auto& engine : engines_) engine->GiveUpPlace();
}

void ServerProcess::Perform(const FinishBackup& finish) {
  if (!Has(finish.job)) return;
  takes_records_ = false;
  takes_over_ = true;
  absl::Status status;
  uint64_t lowest = ~uint64_t{0};
  for (const auto& engine : engines_) {
    const absl::StatusOr<uint64_t> step = engine->TakeOver();
    status.Update(step.status());
    if (!status.ok()) break;
    lowest = std::min(lowest, *step);
  }
  PerformAll(machine_.Apply(ShardsBuilt{job_, finish.order, status, lowest}));
  if (status.ok()) parts_.on_takes_over();
}

}  // namespace syncline::sim
