#include "comm/rpc/status_json.h"

#include <array>
#include <memory>
#include <utility>

#include "comm/base/status.h"
#include "comm/base/step_phases.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/coordinator_call.h"
#include "comm/rpc/event_json.h"
#include "comm/rpc/phases_proto.h"
#include "nlohmann/json.hpp"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const v1::ServerStatus& server) {
  Json json = {{"server", server.server()},
               {"name", server.name()},
               {"incarnation", server.incarnation()},
               {"shards", server.shards()},
               {"lanes", server.lanes()},
               {"lanes_because", server.lanes_because()},
               {"heartbeat_age_seconds", server.heartbeat_age_seconds()},
               {"bytes", server.bytes()},
               {"memory_budget_bytes", server.memory_budget_bytes()},
               {"memory_placed_bytes", server.memory_placed_bytes()},
               {"drains", server.drains()}};
  if (server.has_lost_seconds()) json["lost_seconds"] = server.lost_seconds();
  return json;
}

// The ratio is of FP32 bytes to bytes on the wire; 0 before the first gradient.
Json ToJson(const v1::CompressionFigures& figures) {
  const auto bytes = static_cast<double>(figures.pushed_value_bytes());
  const auto values = static_cast<double>(figures.pushed_values());
  return {{"ratio", bytes == 0 ? 0.0 : values * sizeof(float) / bytes},
          {"encode_ns_per_value", figures.encode_ns_per_value()},
          {"decode_ns_per_value", figures.decode_ns_per_value()},
          {"residual_ratio", figures.residual_ratio()},
          {"diverged_blocks", figures.diverged_blocks()},
          {"choice", figures.choice()}};
}

Json ToJson(const v1::BackupStatus& backup) {
  return {{"server", backup.server()},
          {"holder", backup.holder()},
          {"lost", backup.lost()},
          {"next", backup.next()}};
}

Json ToJson(const v1::RecoveryStatus& recoveries) {
  Json causes = Json::object();
  for (const auto& [cause, sums] : recoveries.causes()) {
    causes[cause] = {{"count", sums.count()}, {"seconds", sums.seconds()}};
  }
  return {{"count", recoveries.count()},
          {"causes", std::move(causes)},
          {"last", recoveries.last()},
          {"last_seconds", recoveries.last_seconds()},
          {"last_age_seconds", recoveries.last_age_seconds()}};
}

Json ToJson(const v1::RecordStatus& of) {
  const v1::RecordProgress& progress = of.progress();
  return {{"server", of.server()},
          {"durable_step", progress.durable_step()},
          {"lag_steps", progress.lag_steps()},
          {"bytes", progress.bytes()},
          {"disk_bytes", progress.disk_bytes()},
          {"begins_at", progress.begins_at()},
          {"error", progress.error()}};
}

template <size_t kPhases>
Json ToJson(const v1::PhaseSums& message, const std::array<const char*, kPhases>& names) {
  const auto sums = ReadPhases<PhaseSums<kPhases>>(message);
  Json seconds = Json::object();
  for (size_t i = 0; i < kPhases; ++i) seconds[names[i]] = sums.seconds[i];
  return {{"steps", sums.steps}, {"seconds", std::move(seconds)}};
}

Json ToJson(const v1::ServerPhases& of) {
  Json json = {{"server", of.server()}};
  json.update(ToJson(of.phases(), kServerPhaseNames));
  return json;
}

Json ToJson(const v1::MemberStatus& member) {
  return {{"rank", member.rank()},
          {"incarnation", member.incarnation()},
          {"name", member.name()},
          {"step", member.step()},
          {"bytes", member.bytes()},
          {"waiting", member.waiting()},
          {"heartbeat_age_seconds", member.heartbeat_age_seconds()},
          {"left_out", member.left_out()},
          {"compression", ToJson(member.compression())},
          {"links",
           {{"sent_bytes_per_second", member.links().sent_bytes_per_second()},
            {"received_bytes_per_second", member.links().received_bytes_per_second()}}},
          {"phases", ToJson(member.phases(), kWorkerPhaseNames)}};
}

Json ToJson(const v1::Event& event) { return EventToJson(event); }

Json ToJson(const v1::GoalStatus& goal);
Json ToJson(const v1::JobStatus& job);
Json ToJson(const v1::LossPoint& point);

template <typename Messages>
Json ToList(const Messages& messages) {
  Json list = Json::array();
  for (const auto& message : messages) list.push_back(ToJson(message));
  return list;
}

Json ToJson(const v1::LossPoint& point) {
  return {{"step", point.step()},
          {"learning_rate", point.learning_rate()},
          {"loss", point.loss()}};
}

Json ToJson(const v1::CheckpointStatus& checkpoint) {
  return {{"latest", checkpoint.latest()},
          {"step", checkpoint.step()},
          {"bytes", checkpoint.bytes()},
          {"seconds", checkpoint.seconds()},
          {"age_seconds", checkpoint.age_seconds()},
          {"written", checkpoint.written()},
          {"failed", checkpoint.failed()},
          {"error", checkpoint.error()},
          {"is_under_way", checkpoint.is_under_way()},
          {"resumed_from", checkpoint.resumed_from()}};
}

Json ToJson(const v1::RunEnd& end) {
  return {{"job", end.job()},       {"phase", end.phase()},
          {"reason", end.reason()}, {"exit", end.exit()},
          {"step", end.step()},     {"age_seconds", end.age_seconds()}};
}

Json ToJson(const v1::GoalStatus& goal) {
  return {{"goal", goal.goal()},
          {"at_least", goal.at_least()},
          {"limit", goal.limit()},
          {"now", goal.has_now() ? Json(goal.now()) : Json()},
          {"missed", goal.missed()},
          {"budget", goal.budget()},
          {"budget_left", goal.budget_left()},
          {"burn_rate_5m", goal.burn_rate_5m()},
          {"burn_rate_1h", goal.burn_rate_1h()},
          {"met_seconds", goal.met_seconds()},
          {"missed_seconds", goal.missed_seconds()},
          {"missed_in_seconds",
           goal.has_missed_in_seconds() ? Json(goal.missed_in_seconds()) : Json()}};
}

Json ToJson(const v1::AnswersStatus& answers) {
  Json given = Json::object();
  for (const auto& [kind, count] : answers.given()) given[kind] = count;
  return {{"setting", answers.setting()},
          {"given", std::move(given)},
          {"last", answers.last()},
          {"last_age_seconds", answers.last_age_seconds()},
          {"state", answers.state()}};
}

Json ToJson(const v1::JobStatus& job) {
  return {{"job", job.job()},
          {"name", job.name()},
          {"run_id", job.run_id()},
          {"phase", job.phase()},
          {"reason", job.reason()},
          {"epoch", job.epoch()},
          {"step", job.step()},
          {"total_steps", job.total_steps()},
          {"parameters", job.parameters()},
          {"expected_workers", job.expected_workers()},
          {"push_codec", job.push_codec()},
          {"publish_codec", job.publish_codec()},
          {"mode", job.mode()},
          {"learning_rate", job.learning_rate()},
          {"loss_scale", job.loss_scale()},
          {"skipped_steps", job.skipped_steps()},
          {"left_out", job.left_out()},
          {"loss", job.has_loss() ? Json(job.loss()) : Json()},
          {"gradient_norm", job.has_gradient_norm() ? Json(job.gradient_norm()) : Json()},
          {"loss_curve", ToList(job.loss_curve())},
          {"checkpoint", ToJson(job.checkpoint())},
          {"durability", job.durability()},
          {"waits_for_servers", job.waits_for_servers()},
          {"ended", job.has_ended() ? ToJson(job.ended()) : Json()},
          {"before", job.has_before() ? ToJson(job.before()) : Json()},
          {"backups", ToList(job.backups())},
          {"records", ToList(job.records())},
          {"training_servers", job.training_servers()},
          {"recoveries", ToJson(job.recoveries())},
          {"goals", ToList(job.goals())},
          {"answers", job.has_answers() ? ToJson(job.answers()) : Json()},
          {"events", ToList(job.events())},
          {"members", ToList(job.members())},
          {"server_phases", ToList(job.server_phases())}};
}

absl::StatusOr<std::string> AskForStatus(const CoordinatorCaller& coordinator,
                                         absl::Duration timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const v1::StatusReply reply,
      coordinator.Call(&v1::Coordinator::Stub::Status, v1::StatusRequest(), timeout));
  return StatusAsJson(reply);
}

}  // namespace

std::string StatusAsJson(const v1::StatusReply& reply) {
  const Json json = {{"build_version", reply.build_version()},
                     {"uptime_seconds", reply.uptime_seconds()},
                     {"failure_timeout_seconds", reply.failure_timeout_seconds()},
                     {"servers", ToList(reply.servers())},
                     {"jobs", ToList(reply.jobs())},
                     {"events", ToList(reply.events())}};
  // Names come from members, so invalid UTF-8 must not end the process.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::string> FetchStatusJson(const std::string& address,
                                            const TlsOptions& tls,
                                            absl::Duration timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(const CoordinatorCaller coordinator,
                            CoordinatorCaller::Connect(address, tls, timeout));
  return AskForStatus(coordinator, timeout);
}

std::optional<std::string> StatusJsonIfAnswered(const std::string& address,
                                                const TlsOptions& tls,
                                                absl::Duration timeout) {
  const auto channel = CreateChannel(address, tls, RpcTimeouts::Default());
  if (!channel.ok()) return std::nullopt;
  if (!(*channel)->WaitForConnected(DeadlineIn(timeout))) return std::nullopt;
  absl::StatusOr<std::string> answer = AskForStatus(CoordinatorCaller(*channel), timeout);
  if (!answer.ok()) return std::nullopt;
  return *std::move(answer);
}

}  // namespace syncline
