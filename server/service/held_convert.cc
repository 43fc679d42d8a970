#include "server/service/held_convert.h"

#include <algorithm>

#include "comm/base/secret_key.h"
#include "comm/transport/tcp/member_key.h"

namespace syncline {

void WriteMembership(const HeldMembership& member, v1::HeldMembership& out) {
  out.set_job(member.job);
  out.set_incarnation(member.incarnation);
  out.set_session_key(member.session_key);
  out.set_epoch(member.epoch);
  out.set_step(member.step);
  out.set_is_in_barrier(member.barrier.has_value());
  out.set_barrier(member.barrier.value_or(0));
  out.set_barriers(member.barriers);
}

std::optional<HeldMembership> ReadMembership(const v1::WorkerHello& hello) {
  if (!hello.has_member()) return std::nullopt;
  const v1::HeldMembership& in = hello.member();
  return HeldMembership{
      .job = in.job(),
      .incarnation = in.incarnation(),
      .session_key = in.session_key(),
      .epoch = in.epoch(),
      .step = in.step(),
      .barrier = in.is_in_barrier() ? std::optional(in.barrier()) : std::nullopt,
      .barriers = in.barriers()};
}

void WriteDecision(const StepDecision& decision, v1::StepDecision& out) {
  out.set_job(decision.job);
  out.set_step(decision.step);
  out.set_gradient_scale(decision.decision.gradient_scale);
  out.set_skip(decision.decision.skip);
  out.set_loss_scale(decision.decision.loss_scale);
  for (const double sum : decision.decision.figures) out.add_figures(sum);
  out.set_growth_tracker(decision.scaler.growth_tracker);
  out.set_hysteresis(decision.scaler.hysteresis);
  out.set_skipped_steps(decision.skipped);
}

StepDecision ReadDecision(const v1::StepDecision& in) {
  return {.job = in.job(),
          .step = in.step(),
          .decision = {.gradient_scale = in.gradient_scale(),
                       .skip = in.skip(),
                       .loss_scale = in.loss_scale(),
                       .figures = {in.figures().begin(), in.figures().end()}},
          .scaler = {.scale = in.loss_scale(),
                     .growth_tracker = in.growth_tracker(),
                     .hysteresis = in.hysteresis()},
          .skipped = in.skipped_steps()};
}

void WriteClosed(const StepClosed& closed, v1::StepClosed& out) {
  out.set_job(closed.job);
  out.set_step(closed.step);
  for (const uint32_t incarnation : closed.incarnations)
    out.add_incarnations(incarnation);
}

StepClosed ReadClosed(const v1::StepClosed& in) {
  return {.job = in.job(),
          .step = in.step(),
          .incarnations = {in.incarnations().begin(), in.incarnations().end()}};
}

void WriteStepHeld(const StepHeld& held, v1::StepHeld& out) {
  out.set_job(held.job);
  out.set_shard(held.shard);
  out.set_step(held.step);
  for (const uint32_t incarnation : held.incarnations) out.add_incarnations(incarnation);
}

// Sorts the incarnations, because the coordinator searches them.
StepHeld ReadStepHeld(const v1::StepHeld& in) {
  StepHeld held = {.job = in.job(),
                   .shard = in.shard(),
                   .step = in.step(),
                   .incarnations = {in.incarnations().begin(), in.incarnations().end()}};
  std::ranges::sort(held.incarnations);
  return held;
}

void WriteHeld(const ServerHello& hello, v1::HeldServer& out) {
  out.set_server(hello.identity->server);
  out.set_incarnation(hello.identity->incarnation);
  for (const HeldJob& held : hello.held) {
    v1::HeldJob& job = *out.add_jobs();
    job.set_job(held.job);
    job.set_prepared_epoch(held.prepared);
    job.set_committed_epoch(held.committed);
    job.set_cut(held.cut);
    if (held.decided) WriteDecision(*held.decided, *job.mutable_decided());
    if (held.closed) WriteClosed(*held.closed, *job.mutable_closed());
    job.set_run(held.run);
  }
}

void ReadHeld(const v1::HeldServer& in, ServerHello& hello) {
  hello.identity = {.server = in.server(), .incarnation = in.incarnation()};
  for (const v1::HeldJob& job : in.jobs()) {
    HeldJob& held = hello.held.emplace_back();
    held = {.job = job.job(),
            .prepared = job.prepared_epoch(),
            .committed = job.committed_epoch(),
            .cut = job.cut()};
    if (job.has_decided()) held.decided = ReadDecision(job.decided());
    if (job.has_closed()) held.closed = ReadClosed(job.closed());
    held.run = job.run();
  }
}

void WriteJournals(const ServerHello& hello, v1::ServerHello& out) {
  for (const JournaledRun& run : hello.journals) {
    v1::JournaledRun& written = *out.add_journals();
    written.set_job(run.job);
    written.set_run(run.run);
    for (const uint32_t shard : run.shards) written.add_shards(shard);
    for (const uint32_t one : run.generations) written.add_generations(one);
  }
}

void ReadJournals(const v1::ServerHello& in, ServerHello& hello) {
  for (const v1::JournaledRun& run : in.journals()) {
    hello.journals.push_back(
        {.job = run.job(),
         .run = run.run(),
         .shards = {run.shards().begin(), run.shards().end()},
         .generations = {run.generations().begin(), run.generations().end()}});
  }
}

void WriteMoves(const EpochChanged& change, v1::EpochChanged& out) {
  for (const MovedShard& moved : change.moved) {
    v1::MovedShard& written = *out.add_moved();
    written.set_shard(moved.shard);
    written.set_epoch(moved.epoch);
    written.set_address(moved.address);
    if (change.key.empty()) continue;
    const SecretKey key = DeriveMemberKey(change.key, change.member, moved.server);
    written.set_key(key.bytes().data(), SecretKey::kBytes);
  }
}

}  // namespace syncline
