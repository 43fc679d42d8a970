// Tests of SessionOptions::FromEnv, and of the checks that need no coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/client/job_request.h"
#include "worker/client/session.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Starts each test without any of the variables. It does not restore them, because the
// test binary has its own environment.
class SessionOptionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "VC_TASK_INDEX",
          "JOB_COMPLETION_INDEX", "WORLD_SIZE", "SYNCLINE_COORDINATOR",
          "SYNCLINE_FAILURE_TIMEOUT", "SYNCLINE_CODEC_THREADS", "DMLC_ROLE", "DMLC_RANK",
          "DMLC_WORKER_ID", "DMLC_NUM_WORKER"}) {
      unsetenv(name);
    }
  }
};

TEST_F(SessionOptionsTest, TakesTheFirstRankVariableThatIsSet) {
  setenv("JOB_COMPLETION_INDEX", "7", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->rank, 7u);
  setenv("SLURM_PROCID", "3", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->rank, 3u);
  setenv("RANK", "1", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->rank, 1u);
}

TEST_F(SessionOptionsTest, TakesTheNumberOfThreadsThatEncode) {
  EXPECT_EQ(SessionOptions::FromEnv()->codec_threads, std::nullopt);
  setenv("SYNCLINE_CODEC_THREADS", "0", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->codec_threads, 0u);
  setenv("SYNCLINE_CODEC_THREADS", "many", 1);
  EXPECT_THAT(std::string(SessionOptions::FromEnv().status().message()),
              HasSubstr("SYNCLINE_CODEC_THREADS=many is not a whole number"));
  EXPECT_TRUE(CheckSessionOptions({.codec_threads = 64}).ok());
  EXPECT_THAT(std::string(CheckSessionOptions({.codec_threads = 65}).message()),
              HasSubstr("codec_threads is 65, allowed are 0 to 64"));
}

TEST_F(SessionOptionsTest, TakesPsLitesVariablesWhereNoOthersAreSet) {
  setenv("DMLC_ROLE", "worker", 1);
  setenv("DMLC_NUM_WORKER", "8", 1);
  setenv("DMLC_RANK", "5", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->rank, 5u);
  EXPECT_EQ(SessionOptions::FromEnv()->world_size, 8u);
  setenv("DMLC_WORKER_ID", "6", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->rank, 6u);
  unsetenv("DMLC_ROLE");
  EXPECT_EQ(SessionOptions::FromEnv()->rank, 6u) << "a worker unless told otherwise";
  setenv("DMLC_WORKER_ID", "me", 1);
  EXPECT_THAT(std::string(SessionOptions::FromEnv().status().message()),
              HasSubstr("DMLC_WORKER_ID=me is not a whole number"));
  // Variables of other launchers override those of ps-lite.
  setenv("WORLD_SIZE", "2", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->rank, 0u);
  EXPECT_EQ(SessionOptions::FromEnv()->world_size, 2u);
}

TEST_F(SessionOptionsTest, RefusesToBeAServerOfPsLite) {
  setenv("DMLC_NUM_WORKER", "8", 1);
  for (const char* role : {"server", "scheduler"}) {
    setenv("DMLC_ROLE", role, 1);
    const absl::Status refused = SessionOptions::FromEnv().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("syncline serve"));
  }
  setenv("RANK", "1", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->rank, 1u);
}

TEST_F(SessionOptionsTest, TakesTheModeThatALauncherNames) {
  EXPECT_EQ(SessionOptions::FromEnv()->training.mode.name, "bsp");
  setenv("SYNCLINE_MODE", "ssp:staleness=3", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->training.mode.values.at("staleness"), 3);
  setenv("SYNCLINE_MODE", "ssp:4", 1);
  EXPECT_EQ(SessionOptions::FromEnv()->training.mode.values.at("staleness"), 4);
  setenv("SYNCLINE_MODE", "bsp:3", 1);
  EXPECT_THAT(std::string(SessionOptions::FromEnv().status().message()),
              HasSubstr("SYNCLINE_MODE=bsp:3: '3' is not an option"));
  unsetenv("SYNCLINE_MODE");
}

TEST_F(SessionOptionsTest, TakesTheSettingsThatALauncherWasTold) {
  setenv("SYNCLINE_CHECKPOINT_EVERY", "10 min", 1);
  setenv("SYNCLINE_CHECKPOINT_KEEP", "7", 1);
  setenv("SYNCLINE_RESUME", "latest", 1);
  setenv("SYNCLINE_DURABILITY", "disk", 1);
  setenv("SYNCLINE_PUSH_CODEC", "int8", 1);  // ignored: only the program sets codecs
  EXPECT_EQ(SessionOptions::FromEnv()->settings,
            (JobSettings{.checkpoint_every = {.seconds = 600},
                         .checkpoint_keep = 7,
                         .resume = "latest",
                         .durability = "disk"}));
  setenv("SYNCLINE_DURABILITY", "paper", 1);
  EXPECT_EQ(SessionOptions::FromEnv().status().message(),
            "environment variable SYNCLINE_DURABILITY=paper: durability is 'paper', "
            "allowed are none, disk, peer and disk+peer");
  for (const char* name :
       {"CHECKPOINT_EVERY", "CHECKPOINT_KEEP", "RESUME", "DURABILITY", "PUSH_CODEC"}) {
    unsetenv(absl::StrCat("SYNCLINE_", name).c_str());
  }
}

TEST_F(SessionOptionsTest, NamesTheVariableThatMakesNoSense) {
  setenv("WORLD_SIZE", "four", 1);
  EXPECT_THAT(std::string(SessionOptions::FromEnv().status().message()),
              HasSubstr("WORLD_SIZE=four"));
  unsetenv("WORLD_SIZE");
  setenv("SYNCLINE_FAILURE_TIMEOUT", "soon", 1);
  EXPECT_THAT(std::string(SessionOptions::FromEnv().status().message()),
              HasSubstr("SYNCLINE_FAILURE_TIMEOUT=soon"));
}

TEST_F(SessionOptionsTest, RefusesUnknownCodecsAndRanksOutOfRange) {
  EXPECT_FALSE(Session::Create({.settings = {.push_codec = "int3"}}).ok());
  EXPECT_FALSE(Session::Create({.rank = 1u << 20}).ok());
  EXPECT_FALSE(Session::Create({.world_size = 0}).ok());
  EXPECT_FALSE(Session::Create({.failure_timeout = absl::Milliseconds(1)}).ok());
}

TEST_F(SessionOptionsTest, RefusesWhatHostsCannotDoForTheirRanks) {
  SessionOptions options = {.world_size = 2, .ranks = 4};
  EXPECT_TRUE(CheckSessionOptions(options).ok());
  const auto refused = [](const SessionOptions& given, const char* why) {
    EXPECT_THAT(std::string(CheckSessionOptions(given).message()), HasSubstr(why));
  };
  options.training.accumulate_steps = 2;
  refused(options, "accumulate_steps is not for local aggregation");
  options.training = {.mode = {.name = "bsp", .values = {{"quorum", 1}}}};
  refused(options, "mode is bsp:quorum=1, but local aggregation needs bsp");
  refused({.world_size = 2, .ranks = 1}, "ranks is 1, allowed are 2, the job's hosts");
}

TEST_F(SessionOptionsTest, DeclareChecksShapeAndName) {
  auto session = Session::Create({});
  ASSERT_TRUE(session.ok());
  std::vector<float> weights(6);
  EXPECT_EQ(*(*session)->Declare({.name = "a", .shape = {2, 3}}, weights), 0u);
  EXPECT_TRUE(absl::IsAlreadyExists(
      (*session)->Declare({.name = "a", .shape = {6}}, weights).status()));
  EXPECT_THAT(std::string((*session)
                              ->Declare({.name = "b", .shape = {2, 4}}, weights)
                              .status()
                              .message()),
              HasSubstr("'b' of shape [2, 4] comes with 6 weights"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      (*session)
          ->Declare({.name = "c", .shape = {1u << 31, 1u << 31, 1u << 31}}, weights)
          .status()));
}

TEST_F(SessionOptionsTest, NothingMovesBeforeStart) {
  auto session = Session::Create({});
  ASSERT_TRUE(session.ok());
  std::vector<float> weights(4);
  const TensorId tensor = *(*session)->Declare({.name = "a", .shape = {4}}, weights);
  EXPECT_TRUE(absl::IsFailedPrecondition((*session)->PushPull(tensor, weights, 1)));
  EXPECT_TRUE(absl::IsFailedPrecondition((*session)->Wait(tensor)));
  EXPECT_TRUE(absl::IsFailedPrecondition((*session)->Barrier()));
}

TEST_F(SessionOptionsTest, StartWithoutCoordinatorSaysWhoIsUnreachable) {
  auto session = Session::Create({.coordinator = "127.0.0.1:1",
                                  .failure_timeout = absl::Milliseconds(800),
                                  .start_timeout = absl::Milliseconds(100)});
  ASSERT_TRUE(session.ok());
  std::vector<float> weights(4);
  ASSERT_TRUE((*session)->Declare({.name = "a", .shape = {4}}, weights).ok());
  const absl::Status status = (*session)->Start();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("`syncline run` starts")));
}

TEST_F(SessionOptionsTest, StartCanBeCancelledAndIsThenOver) {
  auto session = Session::Create({.coordinator = "127.0.0.1:1"});
  ASSERT_TRUE(session.ok());
  std::vector<float> weights(4);
  ASSERT_TRUE((*session)->Declare({.name = "a", .shape = {4}}, weights).ok());
  (*session)->Cancel();
  EXPECT_TRUE(absl::IsCancelled((*session)->Start()));
  (*session)->Uncancel();
  EXPECT_TRUE(absl::IsFailedPrecondition((*session)->Start()));
  EXPECT_TRUE(absl::IsFailedPrecondition((*session)->Wait(0)));
}

TEST_F(SessionOptionsTest, StartWaitsNoLongerThanItsOwnTimeout) {
  auto session = Session::Create({.coordinator = "127.0.0.1:1"});
  ASSERT_TRUE(session.ok());
  std::vector<float> weights(4);
  ASSERT_TRUE((*session)->Declare({.name = "a", .shape = {4}}, weights).ok());
  EXPECT_FALSE((*session)->Start(absl::Milliseconds(10)).ok());
}

TEST_F(SessionOptionsTest, MemoryIsNeededForWeightsAndGradients) {
  auto session = Session::Create({});
  ASSERT_TRUE(session.ok());
  const auto declare = [&](const char* name, std::vector<uint64_t> shape) {
    return (*session)->Declare({.name = name, .shape = std::move(shape)},
                               TensorMemory{.data = nullptr, .dtype = DType::kBf16});
  };
  EXPECT_THAT(std::string(declare("a", {2, 3}).status().message()),
              HasSubstr("'a' has no memory"));
  EXPECT_THAT(std::string(declare("a", {1ull << 40}).status().message()),
              HasSubstr("more than"));
  ASSERT_TRUE(declare("empty", {0}).ok());
  EXPECT_EQ(*(*session)->ElementsOf(0), 0u);
  EXPECT_TRUE(absl::IsInvalidArgument((*session)->ElementsOf(1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*session)->PushPull(1, ConstTensorMemory{}, 1)));
}

TEST(FollowsLearningRate, UnderSgdUnlessGradientsAreClipped) {
  EXPECT_TRUE(FollowsLearningRate({.optimizer = {.name = "sgd"}}));
  EXPECT_TRUE(FollowsLearningRate({.optimizer = {.name = "signsgd"}}));
  EXPECT_FALSE(FollowsLearningRate({.optimizer = {.name = "adamw"}}));
  for (const char* limit :
       {"clip_global_norm", "clip_tensor_norm", "clip_value", "agc"}) {
    TrainingOptions training = {.gradient = {{limit, 1.0}}};
    EXPECT_FALSE(FollowsLearningRate(training)) << limit;
    training.gradient[limit] = 0;
    EXPECT_TRUE(FollowsLearningRate(training)) << limit;
  }
  EXPECT_TRUE(FollowsLearningRate({.gradient = {{"centralize", 1.0}}}));
}

TEST(SessionWarnings, NameLbfgsWithShortSteps) {
  SessionOptions options;
  options.training.optimizer = {.name = "lbfgs", .values = {{"lr", 1e-3}}};
  ASSERT_EQ(SessionWarnings(options).size(), 1u);
  EXPECT_THAT(SessionWarnings(options)[0], HasSubstr("lr=1"));
  options.training.optimizer.values["lr"] = 1;
  EXPECT_TRUE(SessionWarnings(options).empty());
  options.training.optimizer = {.name = "sgd", .values = {{"lr", 1e-3}}};
  EXPECT_TRUE(SessionWarnings(options).empty());
}

}  // namespace
}  // namespace syncline
