// Which settings of a job fit together.
#include "server/coordinator/job_spec.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

JobSpec SparseLoCo() {
  return {.name = "job",
          .workers = 2,
          .settings = {.push_codec = "sparseloco", .publish_codec = "fp32"},
          .training = {.optimizer = {.name = "sgd", .options = {{"lr", 1.0}}}},
          .tensors = {{.name = "w", .shape = {256, 256}}}};
}

TEST(JobSpec, MeansOfSendersNeedTheContributionsThemselves) {
  EXPECT_TRUE(ValidateJob(SparseLoCo()).ok()) << ValidateJob(SparseLoCo());
  JobSpec on_arrival = SparseLoCo();
  on_arrival.training.aggregation = Aggregation::kArrival;
  EXPECT_THAT(
      std::string(ValidateJob(on_arrival).message()),
      AllOf(HasSubstr("over the workers that sent it"), HasSubstr("mean_of_senders=0")));
  JobSpec accumulates = SparseLoCo();
  accumulates.training.accumulate_steps = 2;
  EXPECT_THAT(std::string(ValidateJob(accumulates).message()),
              AllOf(HasSubstr("tensor 'w'"), HasSubstr("accumulate_steps")));
  accumulates.settings.push_codec = "sparseloco:mean_of_senders=0";
  EXPECT_TRUE(ValidateJob(accumulates).ok()) << ValidateJob(accumulates);
  // What travels densely has no senders.
  accumulates.settings.push_codec = "sparseloco:min_elements=1000000";
  EXPECT_TRUE(ValidateJob(accumulates).ok()) << ValidateJob(accumulates);
}

TEST(JobSpec, MomentumIsOnOneSideOnly) {
  JobSpec job = SparseLoCo();
  for (const char* push : {"demo", "dgc"}) {
    job.settings.push_codec = push;
    const auto said = [&](OptimizerSettings optimizer) {
      job.training.optimizer = std::move(optimizer);
      return std::string(ValidateJob(job).message());
    };
    EXPECT_EQ(said({.name = "sgd"}), "");
    EXPECT_EQ(said({.name = "signsgd"}), "");
    EXPECT_THAT(said({.name = "sgd", .options = {{"momentum", 0.9}}}),
                AllOf(HasSubstr("keeps the momentum of tensor 'w' on the workers"),
                      HasSubstr("must be sgd with momentum=0 or signsgd, not 'sgd'")));
    EXPECT_THAT(said({.name = "adamw"}), HasSubstr("not 'adamw'"));
  }
  // What travels densely leaves no momentum.
  job.training.optimizer = {.name = "adamw"};
  job.settings.push_codec = "demo:min_elements=1000000";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  job.training.optimizer = {.name = "signsgd"};
  job.settings.push_codec = "demo";
  job.training.aggregation = Aggregation::kArrival;
  EXPECT_THAT(std::string(ValidateJob(job).message()), HasSubstr("mean_of_senders=0"));
}

TEST(JobSpec, WorkersWithOtherSettingsAreToldTheFirstDifference) {
  const JobSpec ours = SparseLoCo();
  JobSpec theirs = ours;
  EXPECT_TRUE(CheckSameJob(ours, theirs).ok());
  theirs.settings.durability = "disk";
  EXPECT_THAT(std::string(CheckSameJob(ours, theirs).message()),
              HasSubstr("job 'job' has durability 'none', not 'disk'"));
  theirs.settings.checkpoint_every = {.seconds = 600};
  EXPECT_THAT(std::string(CheckSameJob(ours, theirs).message()),
              HasSubstr("has checkpoint_every '', not '10 min'"));
}

TEST(JobSpec, HostsThatCountRanksOtherwiseAreTold) {
  JobSpec ours = SparseLoCo();
  ours.ranks = 4;
  JobSpec theirs = ours;
  EXPECT_TRUE(CheckSameJob(ours, theirs).ok());
  theirs.ranks = 6;
  EXPECT_THAT(std::string(CheckSameJob(ours, theirs).message()),
              HasSubstr("job 'job' has hosts that each push for 4 ranks, not hosts that "
                        "each push for 6 ranks: 'syncline run' needs the same"));
  theirs.ranks = 0;
  EXPECT_THAT(std::string(CheckSameJob(ours, theirs).message()),
              HasSubstr("not workers that each push for themselves"));
  // Such hosts have another number of workers, too, which says less.
  ours.ranks = 0;
  ours.workers = 4;
  theirs.ranks = 4;
  theirs.workers = 2;
  EXPECT_THAT(std::string(CheckSameJob(ours, theirs).message()),
              HasSubstr("has workers that each push for themselves, not hosts "
                        "that each push for 4 ranks"));
}

TEST(JobSpec, HostsMakeStepsTogether) {
  JobSpec job = SparseLoCo();
  job.ranks = 4;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  job.training.mode = {.name = "bsp", .values = {{"quorum", 1}}};
  EXPECT_THAT(std::string(ValidateJob(job).message()),
              HasSubstr("local aggregation needs bsp without a quorum"));
}

TEST(JobSpec, SettingsThatNobodyCanMeanAreRefused) {
  JobSpec job = SparseLoCo();
  job.settings.durability = "paper";
  EXPECT_EQ(ValidateJob(job).message(),
            "durability is 'paper', allowed are none, disk, peer and disk+peer");
}

TEST(JobSpec, StepsOfOneWorkerHaveNoParticipation) {
  const SyncMode async = {.kind = SyncMode::Kind::kAsp};
  EXPECT_TRUE(CheckGoals("participation>=0.9,samples_per_s>=10", {}).ok());
  EXPECT_TRUE(CheckGoals("samples_per_s>=10", async).ok());
  EXPECT_THAT(std::string(CheckGoals("participation>=0.9", async).message()),
              HasSubstr("in mode asp"));
}

// One place says whether servers are waited for: the launcher asks for it by the status.
TEST(JobSpec, WaitsForServersThatHaveItsStepsOnTheirDisks) {
  JobSpec job = SparseLoCo();
  const auto waits = [&job](const char* durability, const char* mode) {
    job.settings.durability = durability;
    job.training.mode = {.name = mode};
    if (job.training.mode.name == "ssp") job.training.mode.values = {{"staleness", 2}};
    return job.WaitsForServers();
  };
  EXPECT_TRUE(waits("disk", "bsp"));
  EXPECT_FALSE(waits("disk", "ssp"));
  EXPECT_FALSE(waits("disk", "asp"));
  EXPECT_TRUE(waits("disk+peer", "bsp"));
  EXPECT_FALSE(waits("peer", "bsp"));
  EXPECT_FALSE(waits("none", "bsp"));
}

}  // namespace
}  // namespace syncline
