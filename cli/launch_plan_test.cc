#include "cli/launch_plan.h"

#include <map>

#include "comm/base/failure.h"
#include "comm/job/job_settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

RunOptions Program() {
  RunOptions options;
  options.program = {"./train"};
  return options;
}

std::map<std::string, std::string> EnvironmentOf(const WorkerPlan& worker) {
  return {worker.env.begin(), worker.env.end()};
}

TEST(LaunchPlan, StartsOneWorkerOneServerAndACoordinatorByDefault) {
  const auto plan = MakeLaunchPlan(Program(), {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->workers.size(), 1u);
  EXPECT_EQ(plan->servers, 1);
  EXPECT_TRUE(plan->starts_coordinator);
}

// One certificate has one role, and services that the launcher starts are on loopback.
TEST(LaunchPlan, TakesCertificatesForItsWorkersOnly) {
  const auto refusal = [](const RunOptions& options) {
    const auto plan = MakeLaunchPlan(options, {});
    EXPECT_EQ(FailureOf(plan.status()), Failure::kUsage);
    return std::string(plan.status().message());
  };
  RunOptions options = Program();
  options.tls = {"a.crt", "a.key", "ca.crt"};
  EXPECT_THAT(refusal(options), HasSubstr("needs no certificate; drop --tls-*"));
  options.coordinator = "10.0.0.1:7070";
  options.servers = 2;
  EXPECT_THAT(refusal(options), HasSubstr("serve --role server"));
  options.servers = -1;
  EXPECT_THAT(refusal(options), HasSubstr("cannot read --tls-cert 'a.crt'"));
}

TEST(LaunchPlan, TellsWorkersToSendAsOneHost) {
  RunOptions options = Program();
  EXPECT_EQ(EnvironmentOf(MakeLaunchPlan(options, {})->workers[0])
                .count("SYNCLINE_LOCAL_AGGREGATION"),
            0u);
  options.local_aggregation = true;
  EXPECT_EQ(EnvironmentOf(MakeLaunchPlan(options, {})->workers[0])
                .at("SYNCLINE_LOCAL_AGGREGATION"),
            "1");
}

TEST(LaunchPlan, KnowsAsWhichMembersTheCoordinatorKnowsItsWorkers) {
  RunOptions options = Program();
  options.nnodes = "2";
  options.nproc_per_node = "2";
  options.node_rank = 1;
  options.coordinator = "10.0.0.1:7070";
  const auto members = [&] {
    std::vector<std::pair<uint32_t, bool>> members;
    const auto plan = MakeLaunchPlan(options, {});
    if (!plan.ok()) return members;
    for (const WorkerPlan& worker : plan->workers) {
      members.emplace_back(worker.member, worker.is_leader);
    }
    return members;
  };
  EXPECT_THAT(members(), testing::ElementsAre(std::pair(2, true), std::pair(3, true)));
  options.local_aggregation = true;
  EXPECT_THAT(members(), testing::ElementsAre(std::pair(1, true), std::pair(1, false)));
  EXPECT_EQ(MakeLaunchPlan(options, {})->workers[1].within, "its rank 3: ");
}

TEST(LaunchPlan, TellsWorkersTheirModeAndWhatIsWrongWithIt) {
  RunOptions options = Program();
  EXPECT_EQ(EnvironmentOf(MakeLaunchPlan(options, {})->workers[0]).count("SYNCLINE_MODE"),
            0u);
  for (const char* mode : {"ssp:staleness=3", "ssp:4"}) {
    options.mode = mode;
    const auto plan = MakeLaunchPlan(options, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(EnvironmentOf(plan->workers[0]).at("SYNCLINE_MODE"), mode);
  }
  const std::pair<const char*, const char*> wrong[] = {
      {"bsp:3", "write NAME=3; such as bsp or bsp:quorum="},
      {"bsp:quorum=16384", "the quorum is 16384, allowed are 1 to"},
      {"ssp:99", "must be a whole number in [0, 64]"},
      {"ssp:staleness", "write staleness=NUMBER"},
      {"asp:age_power=x", "'x' is not a number"},
      {"ssp:x",
       "--mode 'ssp:x': mode 'ssp': staleness is 'x', but must be a whole "
       "number in [0, 64]; such as ssp:3"},
      {"slow", "--mode 'slow'"}};
  for (const auto& [mode, why] : wrong) {
    options.mode = mode;
    const absl::Status refused = MakeLaunchPlan(options, {}).status();
    EXPECT_EQ(FailureOf(refused), Failure::kUsage);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
  }
}

TEST(LaunchPlan, TellsWorkersWhenTheyAreSavedAndWhatTheyBeginWith) {
  RunOptions options = Program();
  options.settings["checkpoint_every"] = "500 steps";
  EXPECT_FALSE(MakeLaunchPlan(options, {}).ok()) << "there is no place";
  options.checkpoint_dir = "s3://";
  EXPECT_THAT(std::string(MakeLaunchPlan(options, {}).status().message()),
              HasSubstr("names no bucket; write s3://BUCKET/PREFIX"));
  options.checkpoint_dir = "ckpt";
  options.settings["resume"] = "run1-step500";
  const auto plan = MakeLaunchPlan(options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->workers[0].env,
              testing::IsSupersetOf({std::pair<std::string, std::string>{
                                         "SYNCLINE_CHECKPOINT_EVERY", "500 steps"},
                                     {"SYNCLINE_RESUME", "run1-step500"}}));
  options.settings["resume"] = "yesterday";
  EXPECT_FALSE(MakeLaunchPlan(options, {}).ok());
  options.settings["resume"] = "latest";
  options.settings["checkpoint_every"] = "often";
  EXPECT_FALSE(MakeLaunchPlan(options, {}).ok());
}

// Covers all settings that exist.
TEST(LaunchPlan, HandsOnWhatFlagsSayOfTheJobsSettings) {
  RunOptions options = Program();
  options.coordinator = "10.0.0.1:7070";
  for (const JobSetting& setting : kJobSettings) {
    if (setting.said_by == SaidBy::kProgram) continue;
    const std::string value = GetJobSetting(setting, {.checkpoint_every = {.steps = 5}});
    options.settings[std::string(setting.name)] = value;
    const auto plan = MakeLaunchPlan(options, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_THAT(plan->workers[0].env,
                testing::Contains(
                    std::pair<std::string, std::string>{VariableOf(setting), value}));
  }
  options.settings["checkpoint_keep"] = "0";
  const absl::Status refused = MakeLaunchPlan(options, {}).status();
  EXPECT_EQ(FailureOf(refused), Failure::kUsage);
  EXPECT_EQ(refused.message(),
            "--checkpoint-keep: checkpoint_keep is '0', allowed are whole numbers from 1 "
            "to 10000");
}

TEST(LaunchPlan, TellsWorkersThatTheirStepsAreJournaled) {
  RunOptions options = Program();
  options.settings["durability"] = "disk";
  EXPECT_THAT(MakeLaunchPlan(options, {}).status().ToString(),
              HasSubstr("--journal-dir"));
  options.journal_dir = "journal";
  const auto plan = MakeLaunchPlan(options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->workers[0].env, testing::Contains(std::pair<std::string, std::string>{
                                        "SYNCLINE_DURABILITY", "disk"}));
  options.settings["durability"] = "paper";
  EXPECT_FALSE(MakeLaunchPlan(options, {}).ok());
}

TEST(LaunchPlan, RefusesSnapshotsWithoutAJournalOrAllTheTime) {
  RunOptions options = Program();
  options.journal_snapshot_factor = 2;
  EXPECT_THAT(MakeLaunchPlan(options, {}).status().ToString(),
              HasSubstr("--journal-dir"));
  options.journal_dir = "journal";
  EXPECT_TRUE(MakeLaunchPlan(options, {}).ok());
  options.journal_snapshot_factor = 0.5;
  EXPECT_THAT(MakeLaunchPlan(options, {}).status().ToString(),
              HasSubstr("1 to 1000 times the state"));
}

TEST(LaunchPlan, JournalsAndBackupsNeedBothPlaceAndServers) {
  RunOptions options = Program();
  options.settings["durability"] = "disk+peer";
  options.servers = 2;
  EXPECT_THAT(MakeLaunchPlan(options, {}).status().ToString(),
              HasSubstr("--journal-dir"));
  options.journal_dir = "journal";
  EXPECT_TRUE(MakeLaunchPlan(options, {}).ok());
  options.servers = 1;
  EXPECT_THAT(MakeLaunchPlan(options, {}).status().ToString(), HasSubstr("--servers 2"));
}

TEST(LaunchPlan, BackupsNeedTwoServers) {
  RunOptions options = Program();
  options.settings["durability"] = "peer";
  for (const int servers : {-1, 1}) {
    options.servers = servers;
    EXPECT_THAT(MakeLaunchPlan(options, {}).status().ToString(),
                HasSubstr("--servers 2"));
  }
  options.servers = 2;
  EXPECT_TRUE(MakeLaunchPlan(options, {}).ok());
  options.servers = 0;  // because they run elsewhere
  options.coordinator = "10.0.0.1:7070";
  EXPECT_TRUE(MakeLaunchPlan(options, {}).ok());
}

TEST(LaunchPlan, StartsOnlyWorkersForAGivenCoordinator) {
  RunOptions options = Program();
  options.workers = 3;
  options.coordinator = "10.0.0.1:7070";
  const auto plan = MakeLaunchPlan(options, {});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->servers, 0);
  EXPECT_FALSE(plan->starts_coordinator);
}

TEST(LaunchPlan, ARunWithoutServersIsForCollectives) {
  RunOptions options = Program();
  options.standalone = true;
  options.servers = 0;
  const auto plan = MakeLaunchPlan(options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->servers, 0);
  EXPECT_TRUE(plan->starts_coordinator);
  options.checkpoint_dir = "checkpoints";
  const absl::Status refused = MakeLaunchPlan(options, {}).status();
  EXPECT_EQ(FailureOf(refused), Failure::kUsage);
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(HasSubstr("--checkpoint-dir is for servers"),
                             HasSubstr("--servers 1")));
  options.checkpoint_dir.clear();
  options.settings["durability"] = "peer";
  EXPECT_THAT(std::string(MakeLaunchPlan(options, {}).status().message()),
              HasSubstr("--durability is for servers"));
}

TEST(LaunchPlan, ServersOfOneHostShareItsMemory) {
  RunOptions options = Program();
  options.servers = 4;
  const auto plan = MakeLaunchPlan(options, {.memory_for_jobs = 4000});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->server_memory_bytes, 1000u);
  EXPECT_EQ(MakeLaunchPlan(options, {})->server_memory_bytes, 0u) << "not known";
}

TEST(LaunchPlan, NumbersRanksAcrossNodes) {
  RunOptions options = Program();
  options.workers = 6;
  options.nnodes = "1:3";
  options.node_rank = 2;
  options.coordinator = "10.0.0.1:7070";
  options.job = "resnet";
  options.run_id = "0123";
  options.failure_timeout = "90";
  const auto plan = MakeLaunchPlan(options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->workers.size(), 2u);
  EXPECT_EQ(plan->workers[1].name, "worker5");
  const auto env = EnvironmentOf(plan->workers[1]);
  EXPECT_EQ(env.at("RANK"), "5");
  EXPECT_EQ(env.at("LOCAL_RANK"), "1");
  EXPECT_EQ(env.at("WORLD_SIZE"), "6");
  EXPECT_EQ(env.at("LOCAL_WORLD_SIZE"), "2");
  EXPECT_EQ(env.at("GROUP_RANK"), "2");
  EXPECT_EQ(env.at("SYNCLINE_WORKERS"), "6");
  EXPECT_EQ(env.at("SYNCLINE_JOB"), "resnet");
  EXPECT_EQ(env.at("SYNCLINE_RUN_ID"), "0123");
  EXPECT_EQ(env.count("SYNCLINE_TLS_CERT"), 0u);
  EXPECT_EQ(env.at("SYNCLINE_FAILURE_TIMEOUT"), "1m30s");
}

TEST(LaunchPlan, TellsWorkersOfTheServersOfTheirRun) {
  const auto told = [](int servers, const std::string& coordinator) {
    RunOptions options = Program();
    options.servers = servers;
    options.coordinator = coordinator;
    const auto plan = MakeLaunchPlan(options, {});
    return EnvironmentOf(plan.value().workers[0]).at("SYNCLINE_RUN_SERVERS");
  };
  EXPECT_EQ(told(-1, ""), "1");
  EXPECT_EQ(told(3, ""), "3");
  EXPECT_EQ(told(0, ""), "0");
  EXPECT_EQ(told(-1, "10.0.0.1:7070"), "elsewhere");
  EXPECT_EQ(told(0, "10.0.0.1:7070"), "0");
}

TEST(LaunchPlan, GoesOnWhileTheWorkersOfTheFewestHostsAreLeft) {
  RunOptions options = Program();
  options.nnodes = "1:3";
  options.nproc_per_node = "2";
  options.coordinator = "10.0.0.1:7070";
  EXPECT_EQ(MakeLaunchPlan(options, {})->min_workers, 2);
  options.min_workers = 5;
  EXPECT_EQ(MakeLaunchPlan(options, {})->min_workers, 5);
  options.min_workers = 0;
  options.nnodes = "3";
  EXPECT_EQ(MakeLaunchPlan(options, {})->min_workers, 6);
  EXPECT_TRUE(IsOneNode("1") && IsOneNode("1:1"));
  EXPECT_FALSE(IsOneNode("1:3") || IsOneNode("2"));
}

TEST(LaunchPlan, TellsHowManyWorkersHaveToStayWhenOneIsExcluded) {
  RunOptions options = Program();
  options.workers = 4;
  options.settings["answers"] = "exclude_straggler,factor=3";
  const auto answers = [&] {
    const auto plan = MakeLaunchPlan(options, {});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return EnvironmentOf(plan->workers[0]).at("SYNCLINE_ANSWERS");
  };
  options.min_workers = 3;
  EXPECT_EQ(answers(), "exclude_straggler,factor=3,min_workers=3");
  options.settings["answers"] = "exclude_straggler,min_workers=4";
  EXPECT_EQ(answers(), "exclude_straggler,min_workers=4");
  const auto refusal = [&] {
    return std::string(MakeLaunchPlan(options, {}).status().message());
  };
  options.settings["answers"] = "exclude_straggler,min_workers=2";
  EXPECT_THAT(refusal(), HasSubstr("min_workers=2 is less than --min-workers 3"));
  options.settings["answers"] = "exclude_straggler" + std::string(235, ' ') + ",";
  options.settings["answers"].back() = ' ';
  EXPECT_THAT(refusal(), HasSubstr("more than the 256 that are allowed"));
  options.settings["answers"] = "exclude_straggler";
  options.nnodes = "2";
  options.nproc_per_node = "2";
  options.coordinator = "10.0.0.1:7070";
  options.servers = 1;
  EXPECT_THAT(refusal(),
              HasSubstr("if the last worker here is excluded, this launcher ends"));
  options.servers = 0;
  EXPECT_EQ(answers(), "exclude_straggler,min_workers=3");
  options.nnodes = "1";
  options.nproc_per_node = "";
  options.min_workers = 0;
  options.max_restarts = 3;
  EXPECT_THAT(refusal(), HasSubstr("must stay with --min-workers"));
  options.max_restarts = 0;
  options.settings["answers"] = "staleness<=8";
  EXPECT_EQ(answers(), "staleness<=8") << "nobody is taken out";
}

TEST(LaunchPlan, TellsWorkersTheirRoleAndAddress) {
  RunOptions options = Program();
  EXPECT_EQ(EnvironmentOf(MakeLaunchPlan(options, {})->workers[0]).at("ROLE_NAME"),
            "default");
  options.role = "trainer";
  options.local_addr = "10.0.0.7";
  const auto env = EnvironmentOf(MakeLaunchPlan(options, {})->workers[0]);
  EXPECT_EQ(env.at("ROLE_NAME"), "trainer");
  EXPECT_EQ(env.at("SYNCLINE_GROUP_ADDRESS"), "10.0.0.7");
}

TEST(LaunchPlan, ShowsTheLocalRanksOfAFilterOnly) {
  RunOptions options = Program();
  options.workers = 4;
  options.nnodes = "2";
  options.node_rank = 1;
  options.coordinator = "10.0.0.1:7070";
  options.local_ranks_filter = "1";
  auto plan = MakeLaunchPlan(options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->workers[0].out, Output::kLog);
  EXPECT_EQ(plan->workers[1].out, Output::kTee);
  EXPECT_EQ(plan->workers[1].err, Output::kTee);

  options.redirects = "3";
  EXPECT_EQ(MakeLaunchPlan(options, {})->workers[1].out, Output::kLog);

  options.nnodes = "1";
  options.node_rank = 0;
  options.redirects = "";
  options.local_ranks_filter = "0,2";
  plan = MakeLaunchPlan(options, {});
  EXPECT_EQ(plan->workers[0].out, Output::kInherit) << "a progress bar works";
  EXPECT_EQ(plan->workers[1].out, Output::kLog);
  EXPECT_EQ(plan->workers[2].out, Output::kTee);
}

TEST(LaunchPlan, UnderstandsTheWordsOfNprocPerNode) {
  const auto local = [](const std::string& text, const Machine& machine) {
    RunOptions options = Program();
    options.nproc_per_node = text;
    const auto plan = MakeLaunchPlan(options, machine);
    return plan.ok() ? static_cast<int>(plan->workers.size()) : -1;
  };
  EXPECT_EQ(local("3", {8, 2}), 3);
  EXPECT_EQ(local("cpu", {8, 2}), 8);
  EXPECT_EQ(local("gpu", {8, 2}), 2);
  EXPECT_EQ(local("auto", {8, 2}), 2);
  EXPECT_EQ(local("auto", {8, 0}), 8);
  EXPECT_EQ(local("gpu", {8, 0}), -1);
  EXPECT_EQ(local("0", {8, 2}), -1);
  EXPECT_EQ(local("many", {8, 2}), -1);
}

TEST(LaunchPlan, SaysWhyThereAreNoGpus) {
  RunOptions options = Program();
  options.nproc_per_node = "gpu";
  const auto plan = MakeLaunchPlan(
      options, {.cores = 8, .about_gpus = "driver for CUDA 12.4 does not start"});
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("no usable GPU: driver for CUDA 12.4 does not start"));
}

TEST(LaunchPlan, KeepsTheTerminalForRankZeroOnly) {
  RunOptions options = Program();
  options.workers = 3;
  auto plan = MakeLaunchPlan(options, {});
  EXPECT_EQ(plan->workers[0].out, Output::kInherit);
  EXPECT_EQ(plan->workers[0].err, Output::kInherit);
  EXPECT_EQ(plan->workers[1].out, Output::kLog);
  EXPECT_EQ(plan->workers[2].err, Output::kLog);

  options.tee = "1:3,2:2";
  plan = MakeLaunchPlan(options, {});
  EXPECT_EQ(plan->workers[0].out, Output::kInherit);
  EXPECT_EQ(plan->workers[1].out, Output::kTee);
  EXPECT_EQ(plan->workers[2].out, Output::kLog);
  EXPECT_EQ(plan->workers[2].err, Output::kTee);

  options.tee = "3";
  plan = MakeLaunchPlan(options, {});
  EXPECT_EQ(plan->workers[0].out, Output::kTee);

  options.tee = "0";
  options.redirects = "3";
  plan = MakeLaunchPlan(options, {});
  EXPECT_EQ(plan->workers[0].out, Output::kLog);
}

TEST(LaunchPlan, RefusesFlagsThatContradictEachOther) {
  const auto refused = [](const std::function<void(RunOptions&)>& change,
                          const char* names) {
    RunOptions options = Program();
    change(options);
    const absl::Status status = MakeLaunchPlan(options, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << names;
    EXPECT_THAT(std::string(status.message()), HasSubstr(names));
  };
  refused([](RunOptions& o) { o.program.clear(); }, "after --");
  refused([](RunOptions& o) { o.workers = -1; }, "--workers");
  refused([](RunOptions& o) { o.workers = 20000; }, "16384");
  refused([](RunOptions& o) { o.workers = 3, o.nproc_per_node = "2"; },
          "--nproc-per-node");
  for (const char* nodes : {"two", "3:1", "0:2", ":2", "1:2:3"}) {
    refused([=](RunOptions& o) { o.nnodes = nodes; }, "--nnodes");
  }
  refused([](RunOptions& o) { o.nnodes = "2"; }, "--coordinator");
  refused([](RunOptions& o) { o.node_rank = 1; }, "--node-rank");
  refused([](RunOptions& o) { o.standalone = true, o.coordinator = "a:1"; },
          "--standalone");
  refused([](RunOptions& o) { o.tee = "4"; }, "--tee");
  refused([](RunOptions& o) { o.redirects = "0:x"; }, "--redirects");
  refused([](RunOptions& o) { o.max_restarts = -1; }, "--max-restarts");
  for (const char* ranks : {"one", "0,", "-1"}) {
    refused([=](RunOptions& o) { o.local_ranks_filter = ranks; }, "--local-ranks-filter");
  }
  refused([](RunOptions& o) { o.workers = 2, o.local_ranks_filter = "0,2"; },
          "this host has no worker 2, only 0 to 1");
  refused([](RunOptions& o) { o.workers = 2, o.mode = "bsp:quorum=3"; },
          "allowed are 1 to 2");
  for (const char* mode : {"bsp:quorum=1", "bsp:quorum=2", "ssp:2", "asp"}) {
    refused(
        [=](RunOptions& o) { o.workers = 2, o.mode = mode, o.local_aggregation = true; },
        "with --local-aggregation: mode is ");
  }
  refused([](RunOptions& o) { o.servers = 0, o.local_aggregation = true; },
          "--local-aggregation is for servers");
  refused([](RunOptions& o) { o.min_workers = 2; }, "--min-workers");
  refused([](RunOptions& o) { o.given_empty = {"goals"}; },
          "--goals is empty; write none for no goals");
  refused([](RunOptions& o) { o.workers = 2, o.settings["answers"] = "codec"; },
          "--answers: 'codec' is not an answer");
  refused(
      [](RunOptions& o) { o.workers = 2, o.settings["answers"] = "exclude_straggler"; },
      "give the number of workers that must stay with --min-workers");
  refused([](RunOptions& o) { o.engine_threads = 65; }, "--engine-threads");
  refused([](RunOptions& o) { o.failure_timeout = "soon"; }, "--failure-timeout");
  refused([](RunOptions& o) { o.failure_timeout = "1ms"; }, "failure timeout");
  refused([](RunOptions& o) { o.failure_timeout = "nan"; }, "'nan' is not a duration");
  refused([](RunOptions& o) { o.data_plane = "ucx"; }, "auto, tls or plain, not 'ucx'");
  refused([](RunOptions& o) { o.data_plane = "rdma"; }, "serve --data-plane rdma");
  refused([](RunOptions& o) { o.data_plane = "tls", o.coordinator = "a:1"; },
          "servers that are started here");
  refused([](RunOptions& o) { o.job = ""; }, "--job");
  refused([](RunOptions& o) { o.job = "a\x1b[31m"; }, "--job 'a\\x1b[31m'");
  refused([](RunOptions& o) { o.run_id = std::string(129, 'r'); }, "--run-id");
}

}  // namespace
}  // namespace syncline
