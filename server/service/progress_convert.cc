#include "server/service/progress_convert.h"

#include <algorithm>
#include <cmath>

#include "comm/base/limits.h"
#include "comm/base/printable.h"
#include "comm/rpc/phases_proto.h"

namespace syncline {
namespace {

// Limit of a server's error. It is cut when it is sent, and not cut again when it
// arrives.
constexpr size_t kMaxErrorBytes = 1000;
constexpr size_t kMaxShownBytes = kMaxErrorBytes + sizeof("...") - 1;

RecordProgress FromProto(const v1::RecordProgress& records) {
  return {.durable_step = records.durable_step(),
          .lag_steps = records.lag_steps(),
          .bytes = records.bytes(),
          .error = Printable(records.error(), kMaxShownBytes),
          .disk_bytes = records.disk_bytes(),
          .begins_at = records.begins_at()};
}

JobProgress::Member FromProto(const v1::MemberProgress& member) {
  return {.rank = member.rank(),
          .owed = member.owed(),
          .waits = member.waits(),
          .contributed = member.contributed(),
          .moved = member.moved()};
}

}  // namespace

double FigureOf(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

void ProgressToProto(const std::vector<JobProgress>& jobs, v1::Heartbeat& beat) {
  for (const JobProgress& job : jobs) {
    v1::JobProgress& out = *beat.add_jobs();
    out.set_job(job.job);
    out.set_step(job.step);
    out.set_trained(job.trained);
    out.set_undecided(job.undecided);
    out.set_unseeded(job.unseeded);
    out.set_completed(job.completed);
    out.set_backup_bytes(job.backup_bytes);
    WritePhases(job.phases, *out.mutable_phases());
    if (job.records) *out.mutable_records() = ToProto(*job.records);
    for (const JobProgress::Member& member : job.members) {
      v1::MemberProgress& one = *out.add_members();
      one.set_rank(member.rank);
      one.set_owed(member.owed);
      one.set_waits(member.waits);
      one.set_contributed(member.contributed);
      one.set_moved(member.moved);
    }
  }
}

std::vector<JobProgress> ProgressFromProto(const v1::Heartbeat& beat) {
  std::vector<JobProgress> jobs;
  for (const v1::JobProgress& job : beat.jobs()) {
    if (static_cast<size_t>(job.members_size()) > kMaxWorkers) continue;
    JobProgress& progress =
        jobs.emplace_back(JobProgress{.job = job.job(),
                                      .step = job.step(),
                                      .trained = job.trained(),
                                      .undecided = job.undecided(),
                                      .unseeded = job.unseeded(),
                                      .completed = job.completed(),
                                      .backup_bytes = job.backup_bytes()});
    progress.phases = ReadPhases<ServerPhases>(job.phases());
    if (job.has_records()) progress.records = FromProto(job.records());
    for (const v1::MemberProgress& member : job.members()) {
      progress.members.push_back(FromProto(member));
    }
  }
  return jobs;
}

v1::RecordProgress ToProto(const RecordProgress& records) {
  v1::RecordProgress out;
  out.set_durable_step(records.durable_step);
  out.set_lag_steps(records.lag_steps);
  out.set_bytes(records.bytes);
  out.set_error(Printable(records.error, kMaxErrorBytes));
  out.set_disk_bytes(records.disk_bytes);
  out.set_begins_at(records.begins_at);
  return out;
}

CompressionFigures FromProto(const v1::CompressionFigures& in) {
  return {.pushed_values = in.pushed_values(),
          .pushed_value_bytes = in.pushed_value_bytes(),
          .diverged_blocks = in.diverged_blocks(),
          .encode_ns = FigureOf(in.encode_ns_per_value()),
          .decode_ns = FigureOf(in.decode_ns_per_value()),
          .residual_ratio = FigureOf(in.residual_ratio()),
          .choice = in.choice()};
}

v1::LinkFigures ToProto(const LinkFigures& links) {
  v1::LinkFigures out;
  out.set_sent_bytes_per_second(links.sent_bytes_per_second);
  out.set_received_bytes_per_second(links.received_bytes_per_second);
  return out;
}

LinkFigures FromProto(const v1::LinkFigures& in) {
  return {.sent_bytes_per_second = FigureOf(in.sent_bytes_per_second()),
          .received_bytes_per_second = FigureOf(in.received_bytes_per_second())};
}

v1::CompressionFigures ToProto(const CompressionFigures& figures) {
  v1::CompressionFigures out;
  out.set_pushed_values(figures.pushed_values);
  out.set_pushed_value_bytes(figures.pushed_value_bytes);
  out.set_diverged_blocks(figures.diverged_blocks);
  out.set_encode_ns_per_value(figures.encode_ns);
  out.set_decode_ns_per_value(figures.decode_ns);
  out.set_residual_ratio(figures.residual_ratio);
  out.set_choice(figures.choice);
  return out;
}

}  // namespace syncline
