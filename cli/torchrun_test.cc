#include "cli/torchrun.h"

#include <string>
#include <vector>

#include "cli/run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RunOptions Parsed(std::vector<std::string> flags) {
  RunOptions options;
  CLI::App app;
  AddRunFlags(app, options);
  app.parse(std::vector<std::string>(flags.rbegin(), flags.rend()));
  return options;
}

TEST(Torchrun, KnowsEveryFlagOfIt) {
  const RunOptions options = Parsed({"--nnodes=1:4",
                                     "--nproc-per-node=2",
                                     "--rdzv-backend=c10d",
                                     "--rdzv-endpoint=h:1",
                                     "--rdzv-id=7",
                                     "--rdzv-conf=timeout=900",
                                     "--max-restarts=3",
                                     "--monitor-interval=0.1",
                                     "--start-method=spawn",
                                     "--event-log-handler=null",
                                     "--role=trainer",
                                     "-m",
                                     "--log-dir=logs",
                                     "-r",
                                     "3",
                                     "-t",
                                     "1",
                                     "--local-ranks-filter=0",
                                     "--node-rank=1",
                                     "--master-addr=m",
                                     "--master-port=29500",
                                     "--local-addr=10.0.0.1",
                                     "--logs-specs=x",
                                     "--numa-binding=node",
                                     "--signals-to-handle=SIGUSR1",
                                     "--virtual-local-rank"});
  EXPECT_EQ(options.run_id, "7");
  EXPECT_EQ(options.role, "trainer");
  EXPECT_EQ(options.master_addr, "m");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_EQ(options.local_addr, "10.0.0.1");
  EXPECT_EQ(options.local_ranks_filter, "0");
  EXPECT_TRUE(options.program_flags.module);
  EXPECT_TRUE(Parsed({"--no-python"}).program_flags.no_python);
  EXPECT_TRUE(Parsed({"--run-path"}).program_flags.run_path);
  EXPECT_THROW(Parsed({"--master-port=65536"}), CLI::ValidationError);
}

TEST(Torchrun, SaysInOneLineWhatHasNoEffect) {
  RunOptions options = Parsed({"--monitor-interval", "5", "--rdzv-backend", "c10d",
                               "--rdzv-conf", "join_timeout=60"});
  EXPECT_THAT(
      UnderstandTorchrun(options),
      ElementsAre(AllOf(
          HasSubstr("--rdzv-backend, --rdzv-conf, --monitor-interval: torchrun options"),
          HasSubstr("without effect here"))));
  options = Parsed({"--rdzv-backend", "syncline", "--nproc-per-node", "2"});
  EXPECT_THAT(UnderstandTorchrun(options), IsEmpty());
}

struct Case {
  std::vector<std::string> flags;
  std::string coordinator;
  std::string said;  // about the endpoint; empty: nothing
};

TEST(Torchrun, TakesAnEndpointForTheCoordinatorWhereItNamesOne) {
  const Case cases[] = {
      {{"--rdzv-endpoint", "h:29400"}, "h:29400", ""},
      {{"--rdzv-endpoint", "h"}, "h:7070", ""},
      {{"--rdzv-endpoint", "[::1]"}, "[::1]:7070", ""},
      {{"--rdzv-endpoint", "[::1]:9"}, "[::1]:9", ""},
      {{"--rdzv-endpoint", "localhost:0"}, "", ""},
      {{"--rdzv-endpoint", "localhost:0", "--rdzv-backend", "c10d"}, "", ""},
      {{"--rdzv-endpoint", "localhost:0", "--nnodes", "2"}, "", ""},
      {{"--rdzv-endpoint", "h:10"}, "h:10", ""},
      {{"--rdzv-endpoint", "h:1", "--rdzv-backend", "c10d", "--nnodes", "1:1"},
       "",
       "--rdzv-endpoint h:1 is not used: workers of one host meet"},
      {{"--rdzv-endpoint", "h:1", "--rdzv-backend", "c10d", "--nnodes", "2"}, "h:1", ""},
      {{"--rdzv-endpoint", "h:1", "--standalone"},
       "",
       "is not used: --standalone starts a coordinator"},
      {{"--rdzv-endpoint", "h:1", "--coordinator", "c:2"},
       "c:2",
       "is not used: --coordinator (SYNCLINE_COORDINATOR) is c:2"},
      {{"--rdzv-endpoint", "c:2", "--coordinator", "c:2"}, "c:2", ""},
  };
  for (const Case& one : cases) {
    RunOptions options = Parsed(one.flags);
    std::vector<std::string> lines = UnderstandTorchrun(options);
    std::erase_if(lines, [](const std::string& line) {
      return line.find("without effect") != line.npos;
    });
    EXPECT_EQ(options.coordinator, one.coordinator) << one.flags[1];
    if (one.said.empty()) {
      EXPECT_THAT(lines, IsEmpty()) << one.flags[1];
    } else {
      EXPECT_THAT(lines, ElementsAre(HasSubstr(one.said)));
    }
  }
}

TEST(RunFlags, SayWhatPatienceIsForAndInWhichUnit) {
  RunOptions options;
  CLI::App app;
  AddRunFlags(app, options);
  EXPECT_THAT(app.help(),
              AllOf(HasSubstr("while the coordinator is away, and this command for an "
                              "answer of --coordinator: 90s, 5m"),
                    HasSubstr("default: 30 times --failure-timeout, 5m where that is")));
}

}  // namespace
}  // namespace syncline
