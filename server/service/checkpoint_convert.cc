#include "server/service/checkpoint_convert.h"

#include <cmath>
#include <string>

#include "server/service/job_convert.h"

namespace syncline {
namespace {

// Durations that cannot be count as zero. The coordinator stores them as JSON, which has
// no infinity.
absl::Duration TookFrom(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return absl::ZeroDuration();
  const absl::Duration took = absl::Seconds(seconds);
  return took == absl::InfiniteDuration() ? absl::ZeroDuration() : took;
}

}  // namespace

void ToProto(const CheckpointWritten& written, v1::CheckpointWritten& out) {
  out.set_job(written.job);
  out.set_step(written.step);
  out.set_code(static_cast<uint32_t>(written.status.code()));
  const absl::string_view error = written.status.message();
  out.set_message(SendableError({error.data(), error.size()}));
  for (const CheckpointFile& file : written.files) {
    v1::CheckpointFile& one = *out.add_files();
    one.set_name(file.name);
    one.set_bytes(file.bytes);
    one.set_head_bytes(file.head_bytes);
    one.set_head_crc32c(file.head_crc32c);
  }
  ToProto(written.training, *out.mutable_training());
  out.set_seconds(absl::ToDoubleSeconds(written.took));
}

CheckpointWritten FromProto(const v1::CheckpointWritten& in) {
  CheckpointWritten written = {.job = in.job(),
                               .step = in.step(),
                               .training = FromProto(in.training()),
                               .took = TookFrom(in.seconds())};
  if (in.code() != 0) written.status = ErrorOf(in.code(), in.message());
  for (const v1::CheckpointFile& file : in.files()) {
    written.files.push_back({.name = file.name(),
                             .bytes = file.bytes(),
                             .head_bytes = file.head_bytes(),
                             .head_crc32c = file.head_crc32c()});
  }
  return written;
}

void ToProto(const CheckpointView& view, v1::CheckpointStatus& out) {
  out.set_latest(view.latest);
  out.set_step(view.step);
  out.set_bytes(view.bytes);
  out.set_seconds(absl::ToDoubleSeconds(view.took));
  out.set_age_seconds(absl::ToDoubleSeconds(view.age));
  out.set_written(view.written);
  out.set_failed(view.failed);
  out.set_error(view.error);
  out.set_is_under_way(view.is_under_way);
  out.set_resumed_from(view.resumed_from);
}

}  // namespace syncline
