#include "cli/serve_options.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/app.h"
#include "cli/serve.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "comm/rpc/address.h"
#include "comm/transport/tcp/address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const char* NoEnvironment(const char*) { return nullptr; }

const char* Home(const char* name) {
  return std::string_view(name) == "HOME" ? "/somebody" : nullptr;
}

absl::StatusOr<ServePlan> Plan(const ServeFlags& flags, int cores = 8) {
  return MakeServePlan(flags, cores, Home);
}

void ExpectRefused(const ServeFlags& flags, const char* flag) {
  const absl::Status status = Plan(flags).status();
  EXPECT_EQ(FailureOf(status), Failure::kUsage) << flag;
  EXPECT_THAT(std::string(status.message()), HasSubstr(flag));
}

TEST(ServePlanTest, ByDefaultOneProcessServesThisHost) {
  const auto plan = Plan({});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->has_coordinator);
  EXPECT_TRUE(plan->has_server);
  EXPECT_EQ(plan->engines, 4u);
  EXPECT_EQ(plan->servers, 1u);
  EXPECT_EQ(plan->data_plane.mode, DataPlaneMode::kHost);
  EXPECT_EQ(plan->state_dir, "/somebody/.local/state/syncline");
  EXPECT_EQ(plan->timeouts.failure_timeout, absl::Seconds(10));
}

TEST(ServePlanTest, TheAdminPortSpeaksTlsBeyondLoopbackUnlessToldOtherwise) {
  const auto seals = [](const char* listen, bool has_tls, bool plain) {
    ServeFlags flags;
    flags.admin_listen = listen;
    flags.admin_plain = plain;
    flags.tls.insecure = !has_tls;
    if (has_tls) flags.tls.cert_file = flags.tls.key_file = "file";
    return Plan(flags)->admin_seals;
  };
  EXPECT_TRUE(seals("0.0.0.0:7071", true, false));
  EXPECT_TRUE(seals("[::]:7071", true, false));
  EXPECT_TRUE(seals("10.0.0.1:7071", true, false));
  EXPECT_FALSE(seals("127.0.0.1:7071", true, false));
  EXPECT_FALSE(seals("0.0.0.0:7071", true, true));
  EXPECT_FALSE(seals("0.0.0.0:7071", false, false));  // --insecure
  ServeFlags flags;
  flags.admin_listen = "0.0.0.0:7071";
  ExpectRefused(flags, "--admin-listen 0.0.0.0:7071");
  ExpectRefused(flags, "--admin-plain");
  flags.admin_plain = true;
  EXPECT_TRUE(Plan(flags).ok());
}

// An empty path from an unset variable would make it start with the wrong state. The role
// would prevent the start in any case.
TEST(ServePlanTest, APathThatIsEmptyIsRefused) {
  for (const char* flag :
       {"--state-dir", "--checkpoint-dir", "--journal-dir", "--audit-log"}) {
    testing::internal::CaptureStderr();
    const std::vector<const char*> arguments = {"syncline", "serve", "--role",
                                                "none",     flag,    ""};
    const AddCommand commands[] = {AddServe};
    EXPECT_EQ(RunApp(arguments, commands), kExitUsage);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_THAT(error, HasSubstr(flag));
    EXPECT_THAT(error, HasSubstr("'' is not a valid value"));
  }
}

TEST(ServePlanTest, AJournalDirIsADirectory) {
  const TempDirectory directory;
  const std::string file = directory.File("file");
  std::ofstream(file) << "no directory";
  const absl::Status refused = CheckJournalDir(file);
  EXPECT_EQ(FailureOf(refused), Failure::kUsage);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--journal-dir"));
  EXPECT_TRUE(CheckJournalDir(directory.File("a/b")).ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory.File("a/b")));
}

TEST(ServePlanTest, OneCoreStillHasAnEngine) {
  EXPECT_EQ(Plan({}, 1)->engines, 1u);
  EXPECT_EQ(Plan({}, 1000)->engines, 64u);
}

TEST(ServePlanTest, MemoryIsAnAmountOrFourFifthsOfWhatIsLeft) {
  ServeFlags flags;
  EXPECT_EQ(Plan(flags)->memory_bytes, 0u) << "not said";
  flags.memory = "8GiB";
  EXPECT_EQ(Plan(flags)->memory_bytes, uint64_t{8} << 30);
  for (const char* wrong : {"0", "much", "-1G"}) {
    flags.memory = wrong;
    ExpectRefused(flags, "--memory");
  }
  EXPECT_EQ(MemoryForJobs({.memory_bytes = 1000}), 800u);
  EXPECT_EQ(MemoryForJobs({.memory_bytes = 0}), 1u) << "nothing is left, which is known";
  EXPECT_EQ(MemoryForJobs({}), 0u);
}

TEST(ServePlanTest, TheDataPlaneReachesAsFarAsTheCoordinator) {
  ServeFlags flags;
  EXPECT_EQ(Plan(flags)->data_plane.because, "the coordinator is at 127.0.0.1");
  flags.listen = "0.0.0.0:7070";
  EXPECT_EQ(Plan(flags)->data_plane.mode, DataPlaneMode::kAuto);
  EXPECT_EQ(Plan(flags)->data_plane.because, "members may be on other hosts");
  // The address of its coordinator decides, which is loopback, and not its own address.
  flags.role = "server";
  EXPECT_EQ(Plan(flags)->data_plane.mode, DataPlaneMode::kHost);
  flags.coordinator = "192.0.2.1:7070";
  EXPECT_EQ(Plan(flags)->data_plane.mode, DataPlaneMode::kAuto);
}

TEST(ServePlanTest, EachRoleMayHaveAnAuditLog) {
  ServeFlags flags;
  flags.audit_log = "audit.json";
  for (const char* role : {"coordinator", "server", "all"}) {
    flags.role = role;
    EXPECT_EQ(Plan(flags)->audit_log, "audit.json") << role;
  }
}

TEST(ServePlanTest, OnlyACoordinatorKnowsWhoIsRevoked) {
  ServeFlags flags;
  flags.revoked = "certs/revoked";
  EXPECT_EQ(Plan(flags)->revoked, "certs/revoked");
  flags.role = "server";
  ExpectRefused(flags, "--revoked");
}

TEST(ServePlanTest, StreamsOfACertificateHaveALimit) {
  ServeFlags flags;
  EXPECT_EQ(Plan(flags)->streams_per_certificate, kMaxWorkers);
  flags.streams_per_certificate = 2;
  EXPECT_EQ(Plan(flags)->streams_per_certificate, 2u);
  for (const int wrong : {-1, 0, 1, static_cast<int>(kMaxWorkers) + 1}) {
    flags.streams_per_certificate = wrong;
    ExpectRefused(flags, "--streams-per-certificate");
  }
}

TEST(ServePlanTest, OnlyAServerHasAJournal) {
  ServeFlags flags;
  flags.journal_dir = "journal";
  EXPECT_EQ(Plan(flags)->journal_dir, "journal");
  flags.role = "coordinator";
  ExpectRefused(flags, "--journal-dir");
}

TEST(ServePlanTest, AJournalTakesSnapshotsAsOftenAsIsSaid) {
  ServeFlags flags;
  EXPECT_EQ(Plan(flags)->journal_snapshot_factor, 4);
  for (const double allowed : {0.0, 1.0, 2.5, 1000.0}) {
    flags.journal_snapshot_factor = allowed;
    EXPECT_EQ(Plan(flags)->journal_snapshot_factor, allowed);
  }
  for (const double refused : {0.5, -1.0, 1001.0}) {
    flags.journal_snapshot_factor = refused;
    ExpectRefused(flags, "--journal-snapshot-factor");
  }
}

TEST(ServePlanTest, TheDataPlaneIsSealedUnlessSomebodySaysOtherwise) {
  ServeFlags flags;
  flags.data_plane = "tls";
  EXPECT_EQ(Plan(flags)->data_plane.mode, DataPlaneMode::kTls);
  EXPECT_EQ(Plan(flags)->data_plane.listen_host, "127.0.0.1");
  EXPECT_EQ(Plan(flags)->data_plane.because, "--data-plane tls");
  flags.data_plane = "plain";
  EXPECT_EQ(Plan(flags)->data_plane.mode, DataPlaneMode::kPlain);
  flags.data_plane = "rdma";
  ExpectRefused(flags, "--rdma-fabric");
  flags.rdma_fabric = "isolated";
  EXPECT_EQ(Plan(flags)->data_plane.mode, DataPlaneMode::kRdma);
  flags.data_plane = "ucx";
  ExpectRefused(flags, "--data-plane");
  flags.data_plane = "tls";
  flags.data_plane_ports = "7100-7199";
  EXPECT_EQ(Plan(flags)->data_plane.first_port, 7100);
  EXPECT_EQ(Plan(flags)->data_plane.last_port, 7199);
  for (const char* wrong : {"7100", "0-1", "9-8", "1-70000", "a-b"}) {
    flags.data_plane_ports = wrong;
    ExpectRefused(flags, "--data-plane-ports");
  }
}

TEST(ServePlanTest, EnginesListenWhereTheyAreReached) {
  DataPlanePlan plan = {.mode = DataPlaneMode::kAuto};
  ASSERT_TRUE(FindDataPlaneHost("192.0.2.7", "127.0.0.1:7070", plan).ok());
  EXPECT_EQ(plan.advertised_host, "192.0.2.7");
  EXPECT_EQ(plan.listen_host, "0.0.0.0");
  DataPlanePlan here = {.mode = DataPlaneMode::kTls, .listen_host = "127.0.0.1"};
  ASSERT_TRUE(FindDataPlaneHost("", "127.0.0.1:7070", here).ok());
  EXPECT_EQ(here.listen_host, "127.0.0.1");
  DataPlanePlan nowhere = {.mode = DataPlaneMode::kAuto};
  EXPECT_EQ(FailureOf(FindDataPlaneHost("no.such.host.invalid", "127.0.0.1:1", nowhere)),
            Failure::kUsage);
  // The coordinator's name may become known later, so the flags are accepted.
  ASSERT_TRUE(FindDataPlaneHost("", "no.such.host.invalid:7070", nowhere).ok());
  EXPECT_FALSE(nowhere.listen_host.empty());
}

TEST(ServePlanTest, AServerNeedsNoStateDirectory) {
  ServeFlags flags;
  EXPECT_EQ(FailureOf(MakeServePlan(flags, 2, NoEnvironment).status()), Failure::kUsage);
  flags.role = "server";
  EXPECT_TRUE(MakeServePlan(flags, 2, NoEnvironment).ok());
}

TEST(ServePlanTest, WrongValuesNameTheirFlag) {
  ServeFlags flags;
  flags.role = "worker";
  ExpectRefused(flags, "--role");
  flags = {};
  flags.servers = 0;
  ExpectRefused(flags, "--servers");
  flags.role = "coordinator";
  flags.state_dir = "state";
  EXPECT_TRUE(MakeServePlan(flags, 2, NoEnvironment).ok()) << "there will be none";
  flags.servers = -1;
  ExpectRefused(flags, "--servers");
  flags = {};
  flags.engine_threads = 65;
  ExpectRefused(flags, "--engine-threads");
  flags = {};
  flags.failure_timeout = "soon";
  ExpectRefused(flags, "--failure-timeout");
  for (const char* wrong : {"1ms", "nan", "inf", "-inf", "infinity"}) {
    flags.failure_timeout = wrong;
    ExpectRefused(flags, "--failure-timeout");
  }
  flags = {};
  flags.rebalance = "on";
  ExpectRefused(flags, "--rebalance");
  flags = {};
  flags.state_dir = "state";
  EXPECT_FALSE(MakeServePlan(flags, 2, NoEnvironment)->spreads_shares);
  flags.rebalance = "auto";
  EXPECT_TRUE(MakeServePlan(flags, 2, NoEnvironment)->spreads_shares);
  flags = {};
  flags.log_level = "loud";
  ExpectRefused(flags, "--log-level");
  flags = {};
  flags.listen = "nowhere";
  ExpectRefused(flags, "--listen");
}

TEST(ServePlanTest, AWildcardIsReachedOnThisHost) {
  EXPECT_EQ(ReachableAddress("0.0.0.0:7070"), "127.0.0.1:7070");
  EXPECT_EQ(ReachableAddress("[::]:7070"), "[::1]:7070");
  EXPECT_EQ(ReachableAddress("10.0.0.1:7070"), "10.0.0.1:7070");
  EXPECT_EQ(AddressForOthers("10.0.0.1:7070"), std::nullopt);
  EXPECT_EQ(AddressForOthers("127.0.0.1:7070"), std::nullopt);
  const auto primary = PrimaryAddress();
  const auto others = AddressForOthers("0.0.0.0:7070");
  if (primary.ok() && !IsLoopback(*primary)) {
    EXPECT_THAT(others.value_or(""), AllOf(HasSubstr(*primary), EndsWith(":7070")));
  } else {
    EXPECT_EQ(others, std::nullopt) << "this host has no network";
  }
}

TEST(ServePlanTest, OneOfSeveralCoordinatorsKeepsItsStateInEtcd) {
  ServeFlags flags;
  flags.role = "coordinator";
  flags.state = "etcd://127.0.0.1:2379,127.0.0.1:2380/x";
  const auto plan = MakeServePlan(flags, 2, NoEnvironment);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->etcd.has_value());
  EXPECT_EQ(plan->etcd->ToString(), flags.state);
  EXPECT_EQ(plan->state_dir, "");

  ServeFlags both = flags;
  both.state_dir = "state";
  ExpectRefused(both, "--state-dir");
  ServeFlags whole = flags;
  whole.role = "all";
  ExpectRefused(whole, "--state needs --role coordinator");
  ServeFlags file = flags;
  file.state = "/var/lib/syncline";
  ExpectRefused(file, "write etcd://");
  ServeFlags far = flags;
  far.state = "etcd://192.0.2.1:2379";
  ExpectRefused(far, "--etcd-ca");
  ServeFlags alone;
  alone.etcd_tls.ca_file = "ca";
  ExpectRefused(alone, "go with --state");
}

TEST(ServePlanTest, AServerMayKnowSeveralCoordinators) {
  ServeFlags flags;
  flags.role = "server";
  flags.coordinator = "192.0.2.1:7070,192.0.2.2:7070";
  const auto plan = MakeServePlan(flags, 2, NoEnvironment);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->coordinator, flags.coordinator);
  flags.coordinator = "192.0.2.1:7070,";
  ExpectRefused(flags, "--coordinator");
}

}  // namespace
}  // namespace syncline
