#include "comm/rpc/job_settings_proto.h"

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

const JobSettings kOthers = {.push_codec = "int8",
                             .publish_codec = "fp32",
                             .checkpoint_every = {.steps = 500},
                             .checkpoint_keep = 7,
                             .resume = "latest",
                             .durability = "disk"};

TEST(JobSettingsProto, LieInTheirFields) {
  v1::JobSpec job;
  ToProto(kOthers, job);
  EXPECT_EQ(job.push_codec(), "int8");
  EXPECT_EQ(job.publish_codec(), "fp32");
  EXPECT_EQ(job.checkpoint().every_steps(), 500u);
  EXPECT_EQ(job.checkpoint().every_seconds(), 0);
  EXPECT_EQ(job.checkpoint().keep(), 7u);
  EXPECT_EQ(job.checkpoint().resume(), "latest");
  EXPECT_EQ(job.durability(), "disk");
  ToProto({.checkpoint_every = {.seconds = 1.5}}, job);
  EXPECT_EQ(job.checkpoint().every_steps(), 0u);
  EXPECT_EQ(job.checkpoint().every_seconds(), 1.5);
}

TEST(JobSettingsProto, AreReadAsTheyWereWritten) {
  for (const JobSettings& settings :
       {JobSettings{}, kOthers, JobSettings{.checkpoint_every = {.seconds = 0.5}}}) {
    v1::JobSpec job;
    ToProto(settings, job);
    EXPECT_EQ(JobSettingsOf(job), settings);
  }
}

TEST(JobSettingsProto, WhatIsNotSaidIsTheDefault) {
  EXPECT_EQ(JobSettingsOf({}), JobSettings{});
}

// Digests of jobs depend on these bytes, and workers and journals of other releases have
// such digests.
TEST(JobSettingsProto, HaveTheBytesThatTheyHadBefore) {
  v1::JobSpec job;
  ToProto({}, job);
  EXPECT_EQ(absl::BytesToHexString(job.SerializeAsString()),
            "1a0462663136"      // 3: "bf16"
            "220462663136"      // 4: "bf16"
            "a20608"            // 100, of 8 bytes:
            "1803"              //   3: 3
            "22046175746f"      //   4: "auto"
            "9208046e6f6e65"    // 130: "none"
            "d20f046e6f6e65"    // 250: "none", later
            "da0f046e6f6e65");  // 251: the same way
}

}  // namespace
}  // namespace syncline
