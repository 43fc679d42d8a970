#include "server/service/server_node.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/machine/server_progress.h"
#include "server/service/proto_convert.h"

namespace syncline {
namespace {

// A disk of a busy machine may take nothing for seconds, and is not stuck.
constexpr absl::Duration kLeastDiskPatience = absl::Seconds(5);

// Returns whether the same attempt would fail again.
bool IsFinal(const absl::Status& status) {
  switch (FailureOf(status)) {
    case Failure::kUsage:
    case Failure::kVersionMismatch:
    case Failure::kJobRefused:
      return true;
    case Failure::kUnreachable:
    case Failure::kRetryable:
      return false;
    default:
      return status.code() == absl::StatusCode::kInvalidArgument ||
             status.code() == absl::StatusCode::kPermissionDenied ||
             status.code() == absl::StatusCode::kUnauthenticated ||
             status.code() == absl::StatusCode::kUnimplemented;
  }
}

}  // namespace

// ---- Life ----

ServerNode::ServerNode(const ServerNodeOptions& options, ServerNodeEvents events)
    : options_(options),
      events_(std::move(events)),
      machine_({.engines = options_.engines,
                .name = options_.name,
                .has_checkpoint_store = options_.checkpoints != nullptr,
                .has_journal_directory = !options_.journal_directory.empty(),
                .is_stand_in = options_.stand_in.has_value()}) {}

absl::StatusOr<std::unique_ptr<ServerNode>> ServerNode::Start(
    const ServerNodeOptions& options, ServerNodeEvents events) {
  std::unique_ptr<ServerNode> node(new ServerNode(options, std::move(events)));
  SYNCLINE_RETURN_IF_ERROR(node->StartEngines());
  node->control_ = std::thread([self = node.get()] { self->Run(); });
  return node;
}

absl::Status ServerNode::StartEngines() {
  if (options_.checkpoints != nullptr) {
    saver_ = std::make_unique<CheckpointSaver>(CheckpointSaver::Options{
        .store = options_.checkpoints,
        .log = options_.log,
        .written = [this](CheckpointWritten written) { OnWritten(std::move(written)); },
        .next = [this](uint32_t job, uint32_t engine,
                       uint64_t step) { CopyNext(job, engine, step); }});
  }
  if (!options_.journal_directory.empty()) {
    journal_ = std::make_unique<Journal>(JournalOptions{
        .directory = options_.journal_directory,
        .log = options_.log,
        .checkpoints = options_.checkpoints,
        .backlog = {.patience = std::max(options_.timeouts.failure_timeout / 2,
                                         kLeastDiskPatience)},
        .snapshots = {.factor = options_.journal_snapshot_factor},
        .on_durable =
            [this](uint32_t job, uint32_t engine, uint64_t records) {
              engines_[engine]->JournalDurable(job, records);
            },
        .on_room = [this](uint32_t job) { RecordState(job); },
        .on_whole = [this](uint32_t job,
                           uint32_t generation) { OnJournalWhole(job, generation); },
        .on_lost =
            [this](const absl::Status& why) {
              events_.on_given_up(WithFailure(why, Failure::kStateUnusable));
            },
        .on_snapshot =
            [this](uint32_t job, uint32_t engine, ShardBackUp::Kind order) {
              engines_[engine]->TakeSnapshot(job, order);
            }});
  }
  EngineOptions options = {.plan = options_.plan,
                           .timeouts = options_.timeouts,
                           .log = options_.log,
                           .audit = options_.audit,
                           .metrics = options_.metrics};
  for (uint32_t i = 0; i < options_.engines; ++i) {
    options.trace = recorder_.AddTrack(absl::StrCat("engine ", i));
    EngineEvents events;
    events.on_backup_lost = [this](uint32_t job, uint64_t key, const std::string& why) {
      Report(BackupFailed{job, key, why});
    };
    events.on_backed_up = [this, i](uint32_t job, uint64_t session_key) {
      Report(BackupFilled{i, job, session_key});
    };
    events.on_journal_ended = [this](uint32_t job) { OnJournalEnded(job); };
    events.on_recorded = [this, i](uint32_t job, const ShardBackedUp& of) {
      of.more ? journal_->TookState(job, i) : journal_->Whole(job, i);
    };
    events.on_output = [this, i](uint32_t job, const ShardOutput& output) {
      OnOutput(i, job, output);
    };
    SYNCLINE_ASSIGN_OR_RETURN(auto engine, Engine::Start(options, std::move(events)));
    engines_.push_back(std::move(engine));
  }
  std::vector<Engine*> engines;
  for (const auto& engine : engines_) engines.push_back(engine.get());
  builder_ = std::make_unique<ShardBuilder>(std::move(engines));
  absl::MutexLock lock(&mutex_);
  ShowMemory();
  return absl::OkStatus();
}

ServerNode::~ServerNode() { Stop(); }

void ServerNode::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (control_.joinable()) control_.join();
  for (auto& node : std::exchange(stand_ins_, {})) End(std::move(node));
  endings_.clear();
  if (builder_ != nullptr) builder_->Stop();
  for (const auto& engine : engines_) engine->Stop();
  backup_.clear();
  if (saver_ != nullptr) saver_->Stop();
  if (journal_ != nullptr) journal_->Stop();
}

bool ServerNode::is_attached() const {
  absl::MutexLock lock(&mutex_);
  return machine_.identity().has_value();
}

// ---- The control thread ----

void ServerNode::Run() {
  for (;;) {
    const absl::Status ended = Attach();
    Apply(LinkLost{});
    if (options_.stand_in) {
      absl::MutexLock lock(&mutex_);
      has_ended_ = true;
      return;
    }
    if (IsFinal(ended)) return events_.on_given_up(ended);
    if (!Rest()) return;
    options_.log.Warning(
        absl::StrCat("waiting for coordinator at ", options_.coordinator),
        {{"reason", std::string(ended.message())}});
  }
}

// Waits before the next attempt. Returns false if the node stops.
bool ServerNode::Rest() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration deadline = clock_.Now() + options_.timeouts.heartbeat_interval;
  while (!stopping_ && changed_.WaitUntil(mutex_, clock_, deadline)) {
  }
  return !stopping_;
}

absl::Status ServerNode::Attach() {
  {
    absl::MutexLock lock(&mutex_);
    ended_.reset();
    outbox_.clear();
  }
  AttachCallbacks callbacks;
  callbacks.on_message = [this](const v1::CoordinatorMessage& message) {
    OnMessage(message);
  };
  callbacks.on_end = [this](const absl::Status& status) { OnEnd(status); };
  const auto link = ControlLink::Open({.attach = {.address = options_.coordinator,
                                                  .tls = options_.tls,
                                                  .timeouts = options_.timeouts},
                                       .hello = HelloMessage(),
                                       .patience = options_.timeouts.connect_timeout,
                                       .outage = options_.patience,
                                       .meanwhile = "jobs go on, without changes",
                                       .hello_again = [this] { return HelloAgain(); },
                                       .log = options_.log},
                                      std::move(callbacks));
  const absl::Status status = Converse(*link);
  link->Close(options_.timeouts.shutdown_grace);
  return status;
}

// Returns when the link has ended or the node stops.
absl::Status ServerNode::Converse(ControlLink& link) {
  absl::Duration next_beat = clock_.Now() + options_.timeouts.heartbeat_interval;
  for (;;) {
    TendStandIns();
    std::vector<MemberBody> messages;
    std::optional<v1::MemberMessage> answer;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_ && !ended_ && outbox_.empty() && !trace_answer_ &&
             asked_.empty()) {
        if (!changed_.WaitUntil(mutex_, clock_, next_beat)) break;
      }
      if (ended_) return *ended_;
      if (stopping_) break;
      messages = std::exchange(outbox_, {});
      answer = std::exchange(trace_answer_, std::nullopt);
    }
    if (answer) link.Send(*std::move(answer));
    if (clock_.Now() >= next_beat) {
      if (journal_ != nullptr) journal_->EndIfStuck();
      Heartbeat beat = MakeHeartbeat();
      SendTrace(link, beat);
      messages.emplace_back(std::move(beat));
      next_beat = clock_.Now() + options_.timeouts.heartbeat_interval;
    }
    for (const MemberBody& message : messages) link.Send(ToProto(message));
  }
  link.Send(ToProto(Leave{}));
  return absl::CancelledError("the server stops");
}

void ServerNode::ShowShards(const Engine::LatestReport& report, uint32_t shard) {
  if (options_.metrics == nullptr) return;
  for (const auto& [id, job] : report.jobs) {
    options_.metrics->SetShard(
        id, shard,
        {.step_seconds = job.phases[ServerPhase::kStep], .window_fill = job.window_fill});
  }
}

Heartbeat ServerNode::MakeHeartbeat() {
  Heartbeat beat;
  std::map<uint32_t, JobProgress> jobs;
  std::map<uint32_t, RecordSender::Progress> backups;
  for (uint32_t shard = 0; const auto& engine : engines_) {
    const Engine::LatestReport report = engine->AskProgress();
    ShowShards(report, shard++);
    beat.silent = std::max(beat.silent, report.silent);
    for (const auto& [id, report_of_job] : report.jobs) {
      AddProgress(report_of_job.progress, jobs[id]);
      AddPhases(report_of_job.phases, jobs[id].phases);
      if (!report_of_job.backup) continue;
      jobs[id].backup_bytes += report_of_job.backup->bytes;
      // A shard without trained blocks has no records, and no step that is safe.
      if (report_of_job.progress.trained == 0) continue;
      const auto [backup, is_first] = backups.emplace(id, *report_of_job.backup);
      if (!is_first) AddRecords(*report_of_job.backup, backup->second);
    }
    beat.bytes += engine->bytes();
    beat.step = std::max(beat.step, engine->step());
  }
  AddBackups(backups, jobs);
  AddJournals(jobs);
  for (auto& [id, job] : jobs) {
    job.job = id;
    if (options_.metrics != nullptr) options_.metrics->SetServerPhases(id, job.phases);
    beat.jobs.push_back(std::move(job));
  }
  return beat;
}

// ---- What the coordinator says ----

void ServerNode::OnMessage(const v1::CoordinatorMessage& message) {
  // A job may be large, and is read by the builder.
  if (message.has_configure_job()) return Configure(message.configure_job());
  if (message.has_trace_order()) return Take(message.trace_order());
  const auto body = FromProto(message);
  if (body.ok()) return Apply(*body);
  const std::string why(body.status().message());
  if (const uint64_t times = unreadable_.ToSay(why, "coordinator")) {
    options_.log.Warning("a message of the coordinator cannot be read, and is ignored",
                         {{"error", why}, {"times", times}});
  }
}

void ServerNode::OnEnd(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (!ended_) {
    ended_ =
        status.ok() ? absl::UnavailableError("the coordinator ended the stream") : status;
  }
  changed_.SignalAll();
}

// ---- What the machine orders ----

void ServerNode::Perform(const Attached& attached) {
  options_.log.Info("attached to the coordinator",
                    {{"coordinator", options_.coordinator},
                     {"server", attached.identity.server},
                     {"incarnation", attached.identity.incarnation}});
  events_.on_attached(attached.identity.server);
}

void ServerNode::Perform(const AdmitMembers& admit) {
  options_.log.Info("epoch begins", {{"job", admit.job},
                                     {"epoch", admit.epoch},
                                     {"members", admit.members.size()},
                                     {"reason", admit.reason}});
  if (options_.metrics != nullptr) {
    options_.metrics->SetEpoch(admit.job, admit.epoch);
    options_.metrics->SetMembers(admit.job, admit.members.size());
  }
  std::vector<EngineMember> members;
  for (const MemberRecord& member : admit.members) {
    members.push_back({member.rank, member.incarnation, member.key});
  }
  for (const auto& engine : engines_) engine->Admit(admit.job, members);
  NameJournal(admit);
}

void ServerNode::Perform(const ToShards& order) {
  if (const auto* commit = std::get_if<ShardCommit>(&order.input)) {
    if (commit->training) TakeMemoryFor(order.job, commit->training->sync());
  }
  for (const auto& engine : engines_) engine->Apply(order.job, order.input);
}

void ServerNode::Perform(const DropShards& drop) {
  options_.log.Info("job ends", {{"job", drop.job}, {"reason", drop.reason}});
  if (options_.metrics != nullptr) options_.metrics->ForgetJob(drop.job);
  {
    absl::MutexLock lock(&mutex_);
    shares_.erase(drop.job);
    ShowMemory();
  }
  builder_->Drop(drop.job);
  if (saver_ != nullptr) saver_->Drop(drop.job);
  if (journal_ != nullptr) journal_->Drop(drop.job);
}

void ServerNode::Perform(const DropAllShards& /*drop*/) {
  {
    absl::MutexLock lock(&mutex_);
    if (options_.metrics != nullptr) {
      for (const auto& [id, share] : shares_) options_.metrics->ForgetJob(id);
    }
    shares_.clear();
    ShowMemory();
  }
  builder_->DropAll();
  if (saver_ != nullptr) saver_->DropAll();
  if (journal_ != nullptr) journal_->DropAll();
}

void ServerNode::Perform(const EndNode& end) { OnEnd(absl::CancelledError(end.why)); }

void ServerNode::Queue(std::optional<MemberBody> said) {
  if (!said) return;
  outbox_.push_back(*std::move(said));
  changed_.SignalAll();
}

void ServerNode::Perform(const Misdirected& message) {
  options_.log.Warning("a message for workers came to this server, and is ignored",
                       {{"message", message.message}});
}

// ---- What the engines answer ----

void ServerNode::OnOutput(uint32_t engine, uint32_t id, const ShardOutput& output) {
  if (std::holds_alternative<ShardApplied>(output)) return;
  if (const auto* recorded = std::get_if<ShardRecorded>(&output)) {
    if (journal_ != nullptr) journal_->Take(id, engine, recorded->record);
    return;
  }
  if (saver_ != nullptr && SaveOutput(engine, id, output)) return;
  const bool is_committed = std::holds_alternative<ShardCommitted>(output);
  Report(EngineOutput{
      .engine = engine,
      .job = id,
      .output = output,
      .run = is_committed && journal_ != nullptr ? journal_->RunOf(id) : ""});
}

}  // namespace syncline
