// What is read of a message, and what a message can carry. tests/golden checks that each
// field crosses, and tests/fuzz that damaged messages do no harm.
#include "server/service/proto_convert.h"

#include <limits>
#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/job_record.h"

namespace syncline {
namespace {

// Returns the body as the coordinator reads it.
template <typename Body>
Body Arrived(const v1::MemberMessage& message) {
  v1::MemberMessage arrived;
  EXPECT_TRUE(arrived.ParseFromString(message.SerializeAsString()));
  return std::get<Body>(FromProto(arrived).value());
}

// The coordinator stores this time with the job's record, and could not read it again.
TEST(ProtoConvert, ACheckpointTookNoInfiniteTime) {
  v1::MemberMessage message;
  for (const double seconds : {std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN(), 1e300, -1.0}) {
    message.mutable_checkpoint_written()->set_seconds(seconds);
    const absl::Duration took = Arrived<CheckpointWritten>(message).took;
    EXPECT_EQ(took, absl::ZeroDuration()) << seconds;
    EXPECT_TRUE(
        ParseJobRecord(WriteJobRecord({.name = "job", .saved = {.took = took}})).ok());
  }
  message.mutable_checkpoint_written()->set_seconds(1.5);
  EXPECT_EQ(Arrived<CheckpointWritten>(message).took, absl::Milliseconds(1500));
}

TEST(ProtoConvert, NoServerIsSilentForANegativeTime) {
  v1::MemberMessage message;
  for (const uint64_t ms : {uint64_t{1} << 63, ~uint64_t{0}}) {
    message.mutable_heartbeat()->set_silent_ms(ms);
    EXPECT_GT(Arrived<Heartbeat>(message).silent, absl::Hours(1)) << ms;
  }
  message.mutable_heartbeat()->set_silent_ms(20);
  EXPECT_EQ(Arrived<Heartbeat>(message).silent, absl::Milliseconds(20));
}

// They are shown as they are, in JSON too, which has no such numbers.
TEST(ProtoConvert, MeasuredFiguresAreFiniteAndNotNegative) {
  v1::MemberMessage message;
  v1::Heartbeat& beat = *message.mutable_heartbeat();
  const auto set_all = [&](double value) {
    beat.set_window_fill(value);
    beat.mutable_links()->set_sent_bytes_per_second(value);
    beat.mutable_links()->set_received_bytes_per_second(value);
    beat.mutable_compression()->set_encode_ns_per_value(value);
    beat.mutable_compression()->set_decode_ns_per_value(value);
    beat.mutable_compression()->set_residual_ratio(value);
  };
  const auto expect_all = [&](double value) {
    const auto arrived = Arrived<Heartbeat>(message);
    EXPECT_EQ(arrived.window_fill, value);
    EXPECT_EQ(arrived.links.sent_bytes_per_second, value);
    EXPECT_EQ(arrived.links.received_bytes_per_second, value);
    EXPECT_EQ(arrived.compression.encode_ns, value);
    EXPECT_EQ(arrived.compression.decode_ns, value);
    EXPECT_EQ(arrived.compression.residual_ratio, value);
  };
  for (const double wrong : {std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN(), -1.0}) {
    set_all(wrong);
    expect_all(0);
  }
  set_all(1.5);
  expect_all(1.5);
}

// A message that the coordinator cannot read would end the server's stream, again and
// again.
TEST(ProtoConvert, ErrorsWithOtherEncodingsArrive) {
  const std::string path = "no space in /data/caf\xe9";
  const std::string shown = "no space in /data/caf\\xe9";
  const absl::Status error = absl::ResourceExhaustedError(path);
  EXPECT_EQ(
      Arrived<CheckpointWritten>(ToProto(CheckpointWritten{.status = error})).status,
      absl::ResourceExhaustedError(shown));
  EXPECT_EQ(Arrived<ConfigureFailed>(ToProto(ConfigureFailed{3, error})).status,
            absl::ResourceExhaustedError(shown));
  EXPECT_EQ(Arrived<BackupLost>(ToProto(BackupLost{3, path})).reason, shown);
  EXPECT_EQ(Arrived<JournalLost>(ToProto(JournalLost{3, path})).reason, shown);
  const std::string longer(100'000, 'x');
  EXPECT_LT(Arrived<BackupLost>(ToProto(BackupLost{3, longer})).reason.size(), 5000u);
}

}  // namespace
}  // namespace syncline
