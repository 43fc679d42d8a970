#include "server/service/progress_convert.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::EndsWith;
using ::testing::SizeIs;

RecordProgress Sent(const RecordProgress& records) {
  v1::Heartbeat beat;
  ProgressToProto({{.job = 3, .records = records}}, beat);
  v1::Heartbeat arrived;
  EXPECT_TRUE(arrived.ParseFromString(beat.SerializeAsString()));
  return ProgressFromProto(arrived).at(0).records.value();
}

TEST(RecordProgress, CrossesAsItIs) {
  const RecordProgress records = Sent({.durable_step = 7,
                                       .lag_steps = 2,
                                       .bytes = 99,
                                       .error = "the disk is full",
                                       .disk_bytes = 55,
                                       .begins_at = 3});
  EXPECT_EQ(records.durable_step, 7u);
  EXPECT_EQ(records.lag_steps, 2u);
  EXPECT_EQ(records.disk_bytes, 55u);
  EXPECT_EQ(records.begins_at, 3u);
  EXPECT_EQ(records.bytes, 99u);
  EXPECT_EQ(records.error, "the disk is full");
}

// Protobuf refuses a heartbeat with invalid UTF-8, such as a character that is cut in
// two.
TEST(RecordProgress, AnErrorIsCutBetweenCharacters) {
  std::string error(999, 'x');
  for (int i = 0; i < 10; ++i) error += "\u00fc";
  const std::string sent = Sent({.error = error}).error;
  EXPECT_EQ(sent, std::string(999, 'x') + "...");
  EXPECT_EQ(Sent({.error = "no \xff"}).error, "no \\xff");
}

TEST(RecordProgress, AServersErrorIsNotBelieved) {
  v1::Heartbeat beat;
  beat.add_jobs()->mutable_records()->set_error(std::string(5000, 'x') + "\n");
  const std::string error = ProgressFromProto(beat).at(0).records->error;
  EXPECT_THAT(error, SizeIs(1006));
  EXPECT_THAT(error, EndsWith("..."));
  beat.mutable_jobs(0)->mutable_records()->set_error("a\nb");
  EXPECT_EQ(ProgressFromProto(beat).at(0).records->error, "a\\x0ab");
}

}  // namespace
}  // namespace syncline
