#include "server/service/proto_convert.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "comm/base/check.h"
#include "comm/base/secret_key.h"
#include "comm/rpc/figures_proto.h"
#include "comm/rpc/phases_proto.h"
#include "comm/transport/tcp/member_key.h"
#include "server/service/backup_convert.h"
#include "server/service/checkpoint_convert.h"
#include "server/service/held_convert.h"
#include "server/service/progress_convert.h"

namespace syncline {
namespace {

// Lets std::visit choose by type.
template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

void WriteKey(const SecretKey& key, std::string& out) {
  out.assign(reinterpret_cast<const char*>(key.bytes().data()), SecretKey::kBytes);
}

void WriteCommit(const CommitEpoch& commit, v1::CommitEpoch& out) {
  out.set_job(commit.job);
  out.set_epoch(commit.epoch);
  out.set_reason(commit.reason);
  for (const MemberRecord& member : commit.members) {
    v1::Member& written = *out.add_members();
    written.set_rank(member.rank);
    written.set_incarnation(member.incarnation);
    written.set_first_step(member.first_step);
    written.set_session_key(member.session_key);
    if (member.key.empty()) continue;
    const MemberIdentity worker = {commit.job, member.rank, member.incarnation};
    WriteKey(DeriveMemberKey(member.key, worker, commit.server), *written.mutable_key());
  }
  if (commit.training) ToProto(*commit.training, *out.mutable_training());
  out.set_training_from(commit.training_from);
}

void WriteHello(const WorkerHello& hello, v1::WorkerHello& out) {
  out.set_job(hello.job);
  out.set_job_digest(hello.digest);
  out.set_job_bytes(hello.job_bytes);
  out.set_rank(hello.rank);
  out.set_run_id(hello.run_id);
  out.set_name(hello.name);
  if (hello.member) WriteMembership(*hello.member, *out.mutable_member());
  out.set_rejoins(hello.rejoins);
}

void WriteWelcome(const WorkerWelcome& welcome, SharedBytes& shared,
                  v1::WorkerWelcome& out) {
  out.set_job(welcome.job);
  out.set_incarnation(welcome.incarnation);
  out.set_session_key(welcome.session_key);
  out.set_epoch(welcome.epoch);
  out.set_first_step(welcome.first_step);
  out.set_seeder(welcome.seeder);
  out.set_members(welcome.members);
  out.set_barriers(welcome.barriers);
  if (welcome.staleness) out.set_staleness(*welcome.staleness);
  out.set_shard_addresses(shared.Of(welcome.shard_addresses));
  out.set_placement(shared.Of(welcome.placement));
  v1::ContributionPlan& contributions = *out.mutable_contributions();
  contributions.set_hessian_every(welcome.contributions.hessian_every);
  contributions.set_momentum_from(welcome.contributions.momentum_from);
  if (welcome.key.empty()) return;
  const MemberIdentity worker = {welcome.job, welcome.rank, welcome.incarnation};
  for (const ServerIdentity& server : welcome.shard_servers) {
    WriteKey(DeriveMemberKey(welcome.key, worker, server), *out.add_shard_keys());
  }
}

Heartbeat ReadBeat(const v1::Heartbeat& in) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return {
      .step = in.step(),
      .bytes = in.bytes(),
      .waiting = in.waiting(),
      .compression = FromProto(in.compression()),
      .silent = absl::Milliseconds(static_cast<int64_t>(std::min(in.silent_ms(), kMost))),
      .jobs = ProgressFromProto(in),
      .phases = ReadPhases<WorkerPhases>(in.phases()),
      .samples = in.figures().samples(),
      .durations = ReadDurations(in.figures()),
      .window_fill = FigureOf(in.window_fill()),
      .links = FromProto(in.links())};
}

void WriteBeat(const Heartbeat& beat, v1::Heartbeat& out) {
  out.set_step(beat.step);
  out.set_bytes(beat.bytes);
  out.set_waiting(beat.waiting);
  *out.mutable_compression() = ToProto(beat.compression);
  out.set_silent_ms(absl::ToInt64Milliseconds(beat.silent));
  ProgressToProto(beat.jobs, out);
  WritePhases(beat.phases, *out.mutable_phases());
  WriteFigures(beat.durations, beat.samples, *out.mutable_figures());
  out.set_window_fill(beat.window_fill);
  *out.mutable_links() = ToProto(beat.links);
}

void WriteHello(const ServerHello& hello, v1::ServerHello& out) {
  out.set_name(hello.name);
  for (const std::string& address : hello.shard_addresses)
    out.add_shard_addresses(address);
  out.set_lanes(hello.lanes);
  out.set_lanes_because(hello.lanes_because);
  out.set_memory_bytes(hello.memory_bytes);
  if (hello.stand_in) Write(*hello.stand_in, *out.mutable_stand_in());
  out.set_feeds_two_backups(hello.feeds_two_backups);
  if (hello.identity) WriteHeld(hello, *out.mutable_held());
  WriteJournals(hello, out);
}

ServerHello ReadHello(const v1::ServerHello& in) {
  ServerHello hello = {
      .name = in.name(),
      .shard_addresses = {in.shard_addresses().begin(), in.shard_addresses().end()},
      .lanes = in.lanes(),
      .lanes_because = in.lanes_because(),
      .memory_bytes = in.memory_bytes()};
  if (in.has_held()) ReadHeld(in.held(), hello);
  ReadJournals(in, hello);
  if (in.has_stand_in()) hello.stand_in = Read(in.stand_in());
  hello.feeds_two_backups = in.feeds_two_backups();
  return hello;
}

WorkerHello ReadHello(const v1::WorkerHello& in) {
  return {.job = in.job(),
          .digest = in.job_digest(),
          .job_bytes = in.job_bytes(),
          .rank = in.rank(),
          .run_id = in.run_id(),
          .name = in.name(),
          .member = ReadMembership(in),
          .rejoins = in.rejoins()};
}

void WriteFailed(const ConfigureFailed& failed, v1::ConfigureFailed& out) {
  out.set_job(failed.job);
  out.set_code(static_cast<uint32_t>(failed.status.code()));
  const absl::string_view text = failed.status.message();
  out.set_message(SendableError({text.data(), text.size()}));
}

BlockFigures ReadBlockFigures(const v1::BlockFigures& in) {
  return {.job = in.job(),
          .block = in.block(),
          .step = in.step(),
          .figures = {in.figures().begin(), in.figures().end()}};
}

void WriteBlockFigures(const BlockFigures& figures, v1::BlockFigures& out) {
  out.set_job(figures.job);
  out.set_block(figures.block);
  out.set_step(figures.step);
  for (const double figure : figures.figures) out.add_figures(figure);
}

}  // namespace

absl::StatusOr<MemberBody> FromProto(const v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kServerHello:
      return ReadHello(message.server_hello());
    case v1::MemberMessage::kWorkerHello:
      return ReadHello(message.worker_hello());
    case v1::MemberMessage::kHeartbeat:
      return ReadBeat(message.heartbeat());
    case v1::MemberMessage::kLossReport:
      return LossReport{.step = message.loss_report().step(),
                        .loss = message.loss_report().loss(),
                        .samples = message.loss_report().samples()};
    case v1::MemberMessage::kLeave:
      return Leave{message.leave().why()};
    case v1::MemberMessage::kDrain:
      return Drain{};
    case v1::MemberMessage::kBarrierEntered:
      return BarrierEntered{message.barrier_entered().barrier()};
    case v1::MemberMessage::kJobConfigured:
      return JobConfigured{message.job_configured().job(),
                           message.job_configured().step()};
    case v1::MemberMessage::kConfigureFailed: {
      const v1::ConfigureFailed& failed = message.configure_failed();
      return ConfigureFailed{.job = failed.job(),
                             .status = ErrorOf(failed.code(), failed.message())};
    }
    case v1::MemberMessage::kEpochPrepared:
      return EpochPrepared{.job = message.epoch_prepared().job(),
                           .epoch = message.epoch_prepared().epoch(),
                           .next_step = message.epoch_prepared().next_step()};
    case v1::MemberMessage::kEpochCommitted:
      return EpochCommitted{.job = message.epoch_committed().job(),
                            .epoch = message.epoch_committed().epoch(),
                            .run = message.epoch_committed().run()};
    case v1::MemberMessage::kBlockFigures:
      return ReadBlockFigures(message.block_figures());
    case v1::MemberMessage::kBackupLost:
      return Read(message.backup_lost());
    case v1::MemberMessage::kBackedUp:
      return Read(message.backed_up());
    case v1::MemberMessage::kJournalLost:
      return Read(message.journal_lost());
    case v1::MemberMessage::kJournalWhole:
      return Read(message.journal_whole());
    case v1::MemberMessage::kStepHeld:
      return ReadStepHeld(message.step_held());
    case v1::MemberMessage::kJobDeclaration:
      return JobDeclaration{
          std::make_shared<const std::string>(message.job_declaration().spec())};
    case v1::MemberMessage::kCheckpointWritten:
      return FromProto(message.checkpoint_written());
    // Messages about traces and links never reach the state machines.
    case v1::MemberMessage::kTracePart:
    case v1::MemberMessage::kResume:
    case v1::MemberMessage::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message without a body, or of a newer protocol");
}

v1::MemberMessage ToProto(const MemberBody& body) {
  v1::MemberMessage message;
  std::visit(
      Overloaded{
          [&](const ServerHello& hello) {
            WriteHello(hello, *message.mutable_server_hello());
          },
          [&](const WorkerHello& hello) {
            WriteHello(hello, *message.mutable_worker_hello());
          },
          [&](const Heartbeat& beat) { WriteBeat(beat, *message.mutable_heartbeat()); },
          [&](const Leave& leave) { message.mutable_leave()->set_why(leave.why); },
          [&](const Drain&) { message.mutable_drain(); },
          [&](const BarrierEntered& entered) {
            message.mutable_barrier_entered()->set_barrier(entered.barrier);
          },
          [&](const JobConfigured& configured) {
            message.mutable_job_configured()->set_job(configured.job);
            message.mutable_job_configured()->set_step(configured.step);
          },
          [&](const ConfigureFailed& failed) {
            WriteFailed(failed, *message.mutable_configure_failed());
          },
          [&](const EpochPrepared& prepared) {
            v1::EpochPrepared& out = *message.mutable_epoch_prepared();
            out.set_job(prepared.job);
            out.set_epoch(prepared.epoch);
            out.set_next_step(prepared.next_step);
          },
          [&](const EpochCommitted& committed) {
            v1::EpochCommitted& out = *message.mutable_epoch_committed();
            out.set_job(committed.job);
            out.set_epoch(committed.epoch);
            out.set_run(committed.run);
          },
          [&](const LossReport& report) {
            v1::LossReport& out = *message.mutable_loss_report();
            out.set_step(report.step);
            out.set_loss(report.loss);
            out.set_samples(report.samples);
          },
          [&](const BlockFigures& figures) {
            WriteBlockFigures(figures, *message.mutable_block_figures());
          },
          [&](const StepHeld& held) {
            WriteStepHeld(held, *message.mutable_step_held());
          },
          [&](const BackupLost& lost) { Write(lost, *message.mutable_backup_lost()); },
          [&](const BackedUp& one) { Write(one, *message.mutable_backed_up()); },
          [&](const JournalLost& lost) { Write(lost, *message.mutable_journal_lost()); },
          [&](const JournalWhole& one) { Write(one, *message.mutable_journal_whole()); },
          [&](const JobDeclaration& declaration) {
            message.mutable_job_declaration()->set_spec(*declaration.bytes);
          },
          [&](const CheckpointWritten& written) {
            ToProto(written, *message.mutable_checkpoint_written());
          },
          [](const Disconnected&) { SYNCLINE_CHECK(false); },
          [](const Returned&) { SYNCLINE_CHECK(false); },
      },
      body);
  return message;
}

namespace {

CommitEpoch ReadCommit(const v1::CommitEpoch& in) {
  CommitEpoch out{.job = in.job(), .epoch = in.epoch(), .reason = in.reason()};
  for (const v1::Member& member : in.members()) {
    out.members.push_back({.rank = member.rank(),
                           .incarnation = member.incarnation(),
                           .first_step = member.first_step(),
                           .session_key = member.session_key(),
                           .key = SecretKey::From(std::as_bytes(std::span(member.key())))
                                      .value_or(SecretKey())});
  }
  if (in.has_training()) out.training = FromProto(in.training());
  out.training_from = in.training_from();
  return out;
}

absl::StatusOr<CoordinatorBody> ReadWelcome(const v1::WorkerWelcome& in) {
  v1::Placement placement;
  v1::ShardAddresses shards;
  if (!placement.ParseFromString(in.placement()) ||
      !shards.ParseFromString(in.shard_addresses())) {
    return absl::InvalidArgumentError("a welcome whose placement cannot be read");
  }
  auto placed = std::make_shared<JobPlacement>();
  placed->shard_of_block = {placement.shard_of_block().begin(),
                            placement.shard_of_block().end()};
  return WorkerWelcome{
      .job = in.job(),
      .incarnation = in.incarnation(),
      .session_key = in.session_key(),
      .epoch = in.epoch(),
      .first_step = in.first_step(),
      .seeder = in.seeder(),
      .shard_addresses = std::make_shared<const std::vector<std::string>>(
          shards.addresses().begin(), shards.addresses().end()),
      .placement = std::move(placed),
      .members = in.members(),
      .contributions = {.hessian_every = in.contributions().hessian_every(),
                        .momentum_from = in.contributions().momentum_from()},
      .barriers = in.barriers()};
}

void WriteChange(const EpochChanged& change, v1::EpochChanged& out) {
  out.set_epoch(change.epoch);
  out.set_members(change.members);
  out.set_seeder(change.seeder);
  out.set_reason(change.reason);
  if (change.staleness) out.set_staleness(*change.staleness);
  WriteMoves(change, out);
}

void WriteCut(const CutAt& cut, v1::CutAt& out) {
  out.set_job(cut.job);
  out.set_step(cut.step);
  out.set_last(cut.last);
  out.set_again(cut.again);
}

}  // namespace

absl::StatusOr<CoordinatorBody> FromProto(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kServerWelcome:
      return ServerWelcome{.server = message.server_welcome().server(),
                           .incarnation = message.server_welcome().incarnation()};
    case v1::CoordinatorMessage::kConfigureJob:
      return FromProto(message.configure_job());
    case v1::CoordinatorMessage::kDescribeJob:
      return DescribeJob{message.describe_job().digest()};
    case v1::CoordinatorMessage::kPrepareEpoch:
      return PrepareEpoch{.job = message.prepare_epoch().job(),
                          .epoch = message.prepare_epoch().epoch()};
    case v1::CoordinatorMessage::kCommitEpoch:
      return ReadCommit(message.commit_epoch());
    case v1::CoordinatorMessage::kStepDecision:
      return ReadDecision(message.step_decision());
    case v1::CoordinatorMessage::kStepClosed:
      return ReadClosed(message.step_closed());
    case v1::CoordinatorMessage::kDrained:
      return Drained{};
    case v1::CoordinatorMessage::kEndServer:
      return EndServer{};
    case v1::CoordinatorMessage::kHoldBackup:
      return Read(message.hold_backup());
    case v1::CoordinatorMessage::kBackupAt:
      return Read(message.backup_at());
    case v1::CoordinatorMessage::kBackupGone:
      return Read(message.backup_gone());
    case v1::CoordinatorMessage::kTakeOver:
      return Read(message.take_over());
    case v1::CoordinatorMessage::kJournalGone:
      return Read(message.journal_gone());
    case v1::CoordinatorMessage::kDropJob:
      return DropJob{.job = message.drop_job().job(),
                     .reason = message.drop_job().reason()};
    case v1::CoordinatorMessage::kWaiting:
      return Waiting{message.waiting().reason()};
    case v1::CoordinatorMessage::kEpochChanged:
      return EpochChanged{.epoch = message.epoch_changed().epoch(),
                          .members = message.epoch_changed().members(),
                          .seeder = message.epoch_changed().seeder(),
                          .reason = message.epoch_changed().reason()};
    case v1::CoordinatorMessage::kBarrierReleased:
      return BarrierReleased{message.barrier_released().barrier(),
                             message.barrier_released().barriers()};
    case v1::CoordinatorMessage::kJobFailed:
      return JobFailed{message.job_failed().reason()};
    case v1::CoordinatorMessage::kWorkerWelcome:
      return ReadWelcome(message.worker_welcome());
    case v1::CoordinatorMessage::kSlowestWorker: {
      SlowestWorker slowest;
      const v1::SlowestWorker& in = message.slowest_worker();
      if (in.has_rank()) slowest.rank = in.rank();
      return slowest;
    }
    case v1::CoordinatorMessage::kCutAt:
      return CutAt{.job = message.cut_at().job(),
                   .step = message.cut_at().step(),
                   .last = message.cut_at().last(),
                   .again = message.cut_at().again()};
    // Messages about traces and links never reach the state machines.
    case v1::CoordinatorMessage::kTraceOrder:
    case v1::CoordinatorMessage::kLinkReady:
    case v1::CoordinatorMessage::kLinkUnknown:
    case v1::CoordinatorMessage::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message without a body, or of a newer protocol");
}

v1::CoordinatorMessage ToProto(const CoordinatorBody& body, SharedBytes& shared) {
  v1::CoordinatorMessage message;
  std::visit(
      Overloaded{
          [&](const ServerWelcome& welcome) {
            message.mutable_server_welcome()->set_server(welcome.server);
            message.mutable_server_welcome()->set_incarnation(welcome.incarnation);
          },
          [&](const ConfigureJob& configure) {
            ToProto(configure, shared, *message.mutable_configure_job());
          },
          [&](const DescribeJob& describe) {
            message.mutable_describe_job()->set_digest(describe.digest);
          },
          [&](const PrepareEpoch& prepare) {
            message.mutable_prepare_epoch()->set_job(prepare.job);
            message.mutable_prepare_epoch()->set_epoch(prepare.epoch);
          },
          [&](const CommitEpoch& commit) {
            WriteCommit(commit, *message.mutable_commit_epoch());
          },
          [&](const StepDecision& decision) {
            WriteDecision(decision, *message.mutable_step_decision());
          },
          [&](const StepClosed& closed) {
            WriteClosed(closed, *message.mutable_step_closed());
          },
          [&](const CutAt& cut) { WriteCut(cut, *message.mutable_cut_at()); },
          [&](const Drained&) { message.mutable_drained(); },
          [&](const EndServer&) { message.mutable_end_server(); },
          [&](const HoldBackup& hold) { Write(hold, *message.mutable_hold_backup()); },
          [&](const BackupAt& at) { Write(at, *message.mutable_backup_at()); },
          [&](const BackupGone& gone) { Write(gone, *message.mutable_backup_gone()); },
          [&](const TakeOver& take) { Write(take, *message.mutable_take_over()); },
          [&](const JournalGone& gone) { Write(gone, *message.mutable_journal_gone()); },
          [&](const DropJob& drop) {
            message.mutable_drop_job()->set_job(drop.job);
            message.mutable_drop_job()->set_reason(drop.reason);
          },
          [&](const Waiting& waiting) {
            message.mutable_waiting()->set_reason(waiting.reason);
          },
          [&](const WorkerWelcome& welcome) {
            WriteWelcome(welcome, shared, *message.mutable_worker_welcome());
          },
          [&](const EpochChanged& change) {
            WriteChange(change, *message.mutable_epoch_changed());
          },
          [&](const BarrierReleased& released) {
            message.mutable_barrier_released()->set_barrier(released.barrier);
            message.mutable_barrier_released()->set_barriers(released.barriers);
          },
          [&](const SlowestWorker& slowest) {
            v1::SlowestWorker& out = *message.mutable_slowest_worker();
            if (slowest.rank) out.set_rank(*slowest.rank);
          },
          [&](const JobFailed& failed) {
            message.mutable_job_failed()->set_reason(failed.reason);
          },
      },
      body);
  return message;
}

}  // namespace syncline
