#include "server/service/status_convert.h"

#include <string>

#include "absl/time/time.h"
#include "comm/rpc/phases_proto.h"
#include "server/service/checkpoint_convert.h"
#include "server/service/progress_convert.h"

namespace syncline {
namespace {

void Write(const ServerView& server, v1::ServerStatus& out) {
  out.set_server(server.server);
  out.set_incarnation(server.incarnation);
  out.set_name(server.name);
  out.set_lanes(server.lanes);
  out.set_lanes_because(server.lanes_because);
  out.set_shards(server.shards);
  out.set_bytes(server.bytes);
  out.set_memory_budget_bytes(server.memory_budget_bytes);
  out.set_memory_placed_bytes(server.memory_placed_bytes);
  out.set_heartbeat_age_seconds(absl::ToDoubleSeconds(server.heartbeat_age));
  if (server.lost_for) out.set_lost_seconds(absl::ToDoubleSeconds(*server.lost_for));
  out.set_drains(server.drains);
}

void Write(const MemberView& member, v1::MemberStatus& out) {
  out.set_rank(member.rank);
  out.set_incarnation(member.incarnation);
  out.set_name(member.name);
  out.set_left_out(member.left_out);
  out.set_step(member.step);
  out.set_bytes(member.bytes);
  out.set_waiting(member.waiting);
  out.set_heartbeat_age_seconds(absl::ToDoubleSeconds(member.heartbeat_age));
  *out.mutable_compression() = ToProto(member.compression);
  WritePhases(member.phases, *out.mutable_phases());
  *out.mutable_links() = ToProto(member.links);
}

void Write(const LossPoint& point, v1::LossPoint& out) {
  out.set_step(point.step);
  out.set_learning_rate(point.learning_rate);
  out.set_loss(point.loss);
}

void Write(const BackupView& backup, v1::BackupStatus& out) {
  out.set_server(backup.server);
  out.set_holder(backup.holder);
  out.set_lost(backup.lost);
  out.set_next(backup.next);
}

void Write(const RecoveryView& recoveries, v1::RecoveryStatus& out) {
  out.set_count(recoveries.count);
  for (const auto& [cause, sums] : recoveries.sums) {
    v1::RecoveryStatus::Sums& written = (*out.mutable_causes())[cause];
    written.set_count(sums.count);
    written.set_seconds(absl::ToDoubleSeconds(sums.took));
  }
  out.set_last(recoveries.last);
  out.set_last_seconds(absl::ToDoubleSeconds(recoveries.last_took));
  out.set_last_age_seconds(absl::ToDoubleSeconds(recoveries.last_age));
}

void Write(const GoalView& goal, v1::GoalStatus& out) {
  out.set_goal(std::string(GoalName(goal.goal.kind)));
  out.set_at_least(goal.goal.IsAtLeast());
  out.set_limit(goal.goal.limit);
  if (goal.now) out.set_now(*goal.now);
  out.set_missed(goal.is_missed);
  out.set_budget(goal.budget);
  out.set_budget_left(goal.budget_left);
  out.set_burn_rate_5m(goal.burn_rate_5m);
  out.set_burn_rate_1h(goal.burn_rate_1h);
  out.set_met_seconds(goal.met_seconds);
  out.set_missed_seconds(goal.missed_seconds);
  if (goal.missed_in) out.set_missed_in_seconds(absl::ToDoubleSeconds(*goal.missed_in));
}

void Write(const AnswersView& answers, v1::AnswersStatus& out) {
  out.set_setting(answers.setting);
  for (const auto& [kind, count] : answers.given) (*out.mutable_given())[kind] = count;
  out.set_last(answers.last);
  out.set_last_age_seconds(absl::ToDoubleSeconds(answers.last_age));
  out.set_state(answers.state);
}

void Write(const JobView& job, v1::JobStatus& out) {
  out.set_job(job.job);
  out.set_name(job.name);
  out.set_run_id(job.run_id);
  out.set_phase(std::string(JobPhaseName(job.phase)));
  out.set_reason(job.reason);
  out.set_epoch(job.epoch);
  out.set_step(job.step);
  out.set_total_steps(job.total_steps);
  out.set_parameters(job.parameters);
  out.set_expected_workers(job.expected_workers);
  out.set_push_codec(job.push_codec);
  out.set_mode(job.mode);
  out.set_publish_codec(job.publish_codec);
  out.set_learning_rate(job.learning_rate);
  out.set_loss_scale(job.loss_scale);
  out.set_skipped_steps(job.skipped_steps);
  out.set_left_out(job.left_out);
  out.set_durability(std::string(DurabilityName(job.durability)));
  out.set_waits_for_servers(job.waits_for_servers);
  out.set_training_servers(job.training_servers);
  if (job.loss) out.set_loss(*job.loss);
  if (job.gradient_norm) out.set_gradient_norm(*job.gradient_norm);
  ToProto(job.checkpoint, *out.mutable_checkpoint());
  for (const LossPoint& point : job.loss_curve) Write(point, *out.add_loss_curve());
  for (const MemberView& member : job.members) Write(member, *out.add_members());
  for (const BackupView& backup : job.backups) Write(backup, *out.add_backups());
  for (const GoalView& goal : job.goals) Write(goal, *out.add_goals());
  if (job.answers) Write(*job.answers, *out.mutable_answers());
  Write(job.recoveries, *out.mutable_recoveries());
  for (const auto& [server, progress] : job.records) {
    v1::RecordStatus& written = *out.add_records();
    written.set_server(server);
    *written.mutable_progress() = ToProto(progress);
  }
  for (const auto& [server, phases] : job.server_phases) {
    v1::ServerPhases& written = *out.add_server_phases();
    written.set_server(server);
    WritePhases(phases, *written.mutable_phases());
  }
}

}  // namespace

v1::StatusReply ToProto(const CoordinatorView& view) {
  v1::StatusReply reply;
  reply.set_build_version(SYNCLINE_VERSION);
  for (const ServerView& server : view.servers) Write(server, *reply.add_servers());
  for (const JobView& job : view.jobs) Write(job, *reply.add_jobs());
  return reply;
}

}  // namespace syncline
