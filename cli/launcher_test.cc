#include "cli/launcher.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/launcher_test_util.h"
#include "comm/base/eventually.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(ReadyLine, IsToldFromOtherLines) {
  const auto ready =
      ParseReadyLine("syncline: ready control=[::1]:7070 admin=[::1]:7071");
  ASSERT_TRUE(ready.has_value());
  EXPECT_EQ(ready->control, "[::1]:7070");
  EXPECT_EQ(ready->admin, "[::1]:7071");
  EXPECT_FALSE(ready->server.has_value());
  EXPECT_EQ(ParseReadyLine("syncline: ready control=a:1 admin=b:2 server=3")->server, 3u);
  EXPECT_FALSE(ParseReadyLine("syncline: ready").has_value());
  EXPECT_FALSE(ParseReadyLine("almost syncline: ready control=a:1").has_value());
}

TEST_F(LauncherTest, StartsWhatIsMissingAndStopsItWhenTheWorkersAreDone) {
  options_.workers = 2;
  options_.servers = 2;
  options_.engine_threads = 3;
  const auto code = Run(
      absl::StrCat("echo $RANK $SYNCLINE_COORDINATOR $MASTER_ADDR >> ", Path("workers")));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kExitDone);
  const std::string workers = Read("workers");
  EXPECT_THAT(workers, HasSubstr("0 127.0.0.1:1111 127.0.0.1\n"));
  EXPECT_THAT(workers, HasSubstr("1 127.0.0.1:1111 127.0.0.1\n"));
  const std::string calls = Read("calls");
  EXPECT_THAT(calls, HasSubstr("serve --role coordinator"));
  EXPECT_THAT(calls, HasSubstr("serve --role server --coordinator 127.0.0.1:1111 "
                               "--engine-threads 3 --listen 127.0.0.1:0 --admin-listen "
                               "127.0.0.1:0 --failure-timeout 10s\n"));
  EXPECT_THAT(calls, testing::ContainsRegex("stopped\nstopped\nstopped\n$"));
}

TEST_F(LauncherTest, TellsItsCoordinatorThatThereWillBeNoServers) {
  options_.servers = 0;
  const auto code = Run("exit 0");
  ASSERT_TRUE(code.ok()) << code.status();
  const std::string calls = Read("calls");
  EXPECT_THAT(calls, HasSubstr("--role coordinator"));
  EXPECT_THAT(calls, HasSubstr("--servers 0 "));
  EXPECT_THAT(calls, testing::Not(HasSubstr("--role server")));
}

TEST_F(LauncherTest, TellsItsServersHowToBeReached) {
  options_.data_plane = "tls";
  ASSERT_TRUE(Run("exit 0").ok());
  std::istringstream calls(Read("calls"));
  for (std::string line; std::getline(calls, line);) {
    EXPECT_EQ(absl::StrContains(line, "--data-plane tls"),
              absl::StrContains(line, "--role server"))
        << line;
  }
}

TEST_F(LauncherTest, GivesAJournalToServersOnly) {
  options_.servers = 2;
  options_.journal_dir = Path("journal");
  options_.journal_snapshot_factor = 2.5;
  setenv("SYNCLINE_JOURNAL_DIR", Path("journal").c_str(), 1);
  const auto code = Run("exit 0");
  unsetenv("SYNCLINE_JOURNAL_DIR");
  ASSERT_TRUE(code.ok()) << code.status();
  std::istringstream calls(Read("calls"));
  for (std::string line; std::getline(calls, line);) {
    const bool is_server = absl::StrContains(line, "--role server");
    EXPECT_EQ(absl::StrContains(line, "journal --journal-snapshot-factor 2.5"), is_server)
        << line;
    EXPECT_FALSE(absl::StrContains(line, "inherited")) << line;
  }
}

// The first process ends when the worker tells it to. The worker ends when it sees the
// second process.
constexpr char kDyingCoordinator[] = R"(#!/bin/sh
here=$(dirname "$0")
case "$*" in
*"--role coordinator"*) ;;
*) echo "syncline: ready control=127.0.0.1:2222 admin=127.0.0.1:3333"
   while :; do sleep 0.01; done ;;
esac
echo "$@" >> "$here/calls"
echo "syncline: ready control=127.0.0.1:1111 admin=127.0.0.1:3333"
while [ ! -e "$here/die" ]; do sleep 0.01; done
kill -9 $$
)";

TEST_F(LauncherTest, StartsItsCoordinatorAgainWhereItWas) {
  WriteServe(kDyingCoordinator);
  const auto code =
      Run(absl::StrCat("touch ", Path("die"), "; while [ $(grep -c . ", Path("calls"),
                       ") -lt 2 ]; do sleep 0.01; done; rm ", Path("die")));
  ASSERT_TRUE(code.ok()) << code.status();
  std::istringstream calls(Read("calls"));
  std::string first, second;
  ASSERT_TRUE(std::getline(calls, first) && std::getline(calls, second));
  EXPECT_THAT(first, HasSubstr("--listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 "));
  EXPECT_THAT(second,
              HasSubstr("--listen 127.0.0.1:1111 --admin-listen 127.0.0.1:3333 "));
  EXPECT_EQ(first.substr(0, first.find("--listen")),
            second.substr(0, second.find("--listen")))
      << "with the same state";
}

TEST_F(LauncherTest, GivesUpACoordinatorThatDiesAgainAndAgain) {
  WriteServe(kDyingCoordinator);
  options_.restart_pause = absl::Milliseconds(1);
  const auto code = Run(absl::StrCat("touch ", Path("die"), "; sleep 100"));
  ASSERT_FALSE(code.ok());
  EXPECT_THAT(std::string(code.status().message()),
              testing::AllOf(HasSubstr("coordinator died with signal 9"),
                             HasSubstr("it was started again 3 times")));
  EXPECT_EQ(ExitCodeOf(code.status()), kExitRetryable);
}

TEST_F(LauncherTest, StartsNothingElseWithACoordinator) {
  const AnsweringCoordinator coordinator;
  options_.coordinator = coordinator.address();
  const auto code =
      Run(absl::StrCat("echo $SYNCLINE_COORDINATOR $MASTER_ADDR > ", Path("worker")));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(Read("worker"), absl::StrCat(coordinator.address(), " 127.0.0.1\n"));
  EXPECT_EQ(Read("calls"), "");
}

TEST_F(LauncherTest, StartsNoWorkerWhereNoCoordinatorAnswers) {
  options_.coordinator = "127.0.0.1:1";
  options_.patience = "10ms";
  const auto code = Run(absl::StrCat("touch ", Path("worker")));
  EXPECT_EQ(ExitCodeOf(code.status()), kExitUnreachable);
  EXPECT_THAT(std::string(code.status().message()),
              HasSubstr("no coordinator answered at 127.0.0.1:1 within 10ms"));
  EXPECT_FALSE(std::filesystem::exists(Path("worker")));
}

TEST_F(LauncherTest, SaysHowTheOthersWouldHaveGoneOn) {
  options_.workers = 2;
  const auto code = Run("[ $RANK = 1 ] && kill -9 $$; sleep 100");
  ASSERT_FALSE(code.ok());
  EXPECT_THAT(std::string(code.status().message()),
              testing::AllOf(HasSubstr("--max-restarts"), HasSubstr("--min-workers")));
  const auto own = Run("[ $RANK = 1 ] && exit 9; sleep 100");
  EXPECT_THAT(std::string(own.status().message()),
              testing::Not(HasSubstr("--max-restarts")))
      << "a program's own mistake comes again";
}

TEST_F(LauncherTest, NamesNoFlagsOfRunToACommandWithoutThem) {
  options_.workers = 2;
  options_.advises = false;
  const auto of_worker = Run("[ $RANK = 1 ] && kill -9 $$; sleep 100");
  EXPECT_THAT(std::string(of_worker.status().message()),
              testing::AllOf(HasSubstr("signal 9"), testing::Not(HasSubstr("--"))));
  WriteServe(R"(#!/bin/sh
case "$*" in *coordinator*--state-dir*) port=1111 ;; *) port=2222 ;; esac
echo "syncline: ready control=127.0.0.1:$port admin=127.0.0.1:3333"
[ $port = 1111 ] || { sleep 0.1; kill -9 $$; }
while :; do sleep 0.01; done
)");
  const auto of_server = Run("sleep 100");
  EXPECT_THAT(std::string(of_server.status().message()),
              testing::AllOf(HasSubstr("server0 died with signal 9"),
                             testing::Not(HasSubstr("--"))));
}

TEST_F(LauncherTest, NamesTheWorkerThatFailedAndStopsTheOthers) {
  options_.workers = 3;
  const absl::Time before = absl::Now();
  const auto code = Run("if [ $RANK = 1 ]; then echo no data >&2; exit 9; fi; sleep 100");
  ASSERT_FALSE(code.ok());
  const std::string message(code.status().message());
  EXPECT_THAT(message, HasSubstr("worker 1 failed with exit code 9"));
  EXPECT_THAT(message, HasSubstr(Path("logs/worker1.log")));
  EXPECT_EQ(ExitCodeOf(code.status()), kExitFatal);
  EXPECT_EQ(Read("logs/worker1.log"), "no data\n");
  EXPECT_LT(absl::Now() - before, absl::Seconds(10));
}

TEST_F(LauncherTest, StartsAFailedWorkerAgainWithItsRank) {
  options_.workers = 2;
  options_.max_restarts = 1;
  const auto code =
      Run(absl::StrCat("echo $RANK >> ", Path("lives"), "; if [ $RANK = 1 ] && ",
                       "mkdir ", Path("first"), " 2>/dev/null; then kill -9 $$; fi"));
  ASSERT_TRUE(code.ok()) << code.status();
  std::vector<std::string> lives;
  std::istringstream text(Read("lives"));
  for (std::string line; std::getline(text, line);) lives.push_back(line);
  EXPECT_THAT(lives, testing::UnorderedElementsAre("0", "1", "1"));
}

// torch's `record` writes such files.
TEST_F(LauncherTest, SaysWhatTheProgramSaidOfItsEndAndPassesItOn) {
  options_.workers = 2;
  options_.max_restarts = 1;
  setenv("TORCHELASTIC_ERROR_FILE", Path("passed_on").c_str(), 1);
  const auto code =
      Run("if [ $RANK = 0 ]; then sleep 100; fi\n"
          "test ! -e $TORCHELASTIC_ERROR_FILE || exit 7\n"
          "printf '%s' '{\"message\": {\"message\": \"ValueError: no\\ndata "
          "'$TORCHELASTIC_RESTART_COUNT' "
          "of '$TORCHELASTIC_MAX_RESTARTS'\", \"extraInfo\": {}}}' > "
          "$TORCHELASTIC_ERROR_FILE; exit 1");
  unsetenv("TORCHELASTIC_ERROR_FILE");
  EXPECT_THAT(std::string(code.status().message()),
              testing::ContainsRegex("^worker 1 failed with exit code 1 after .* s; .*; "
                                     "it said: ValueError: no data 1 "
                                     "of 1$"));
  EXPECT_THAT(Read("passed_on"), HasSubstr("ValueError: no\\ndata 1 of 1"));
}

// The others die because of the first failure, and the launcher hears of one of them
// first. File times, which are as fine as the kernel's tick, show who failed first.
TEST_F(LauncherTest, EndsWithTheErrorOfWhoFailedFirst) {
  options_.workers = 3;
  setenv("TORCHELASTIC_ERROR_FILE", Path("passed_on").c_str(), 1);
  testing::internal::CaptureStderr();
  const auto code = Run(absl::StrCat(
      "say() { printf '%s' \"{\\\"message\\\": {\\\"message\\\": \\\"$1\\\", "
      "\\\"extraInfo\\\": {\\\"py_callstack\\\": \\\"Traceback of $1\\\"}}}\" > "
      "$TORCHELASTIC_ERROR_FILE; }\n"
      "cd ",
      directory_.path(),
      "\n"
      "case $RANK in\n"
      "0) while :; do sleep 0.01; done ;;\n"
      "1) while [ ! -e said ]; do sleep 0.01; done; sleep 0.1; say 'lost rank 2'; "
      "exit 138 ;;\n"
      "2) say 'no data'; touch said; trap '' TERM; while :; do sleep 0.01; done ;;\n"
      "esac"));
  const std::string shown = testing::internal::GetCapturedStderr();
  unsetenv("TORCHELASTIC_ERROR_FILE");
  EXPECT_THAT(
      std::string(code.status().message()),
      testing::ContainsRegex("^worker 1 failed with exit code 138 after .*; worker "
                             "2, whose log is .*/worker2.log, failed first: no "
                             "data$"));
  EXPECT_THAT(shown, HasSubstr("traceback of worker 2:\n  Traceback of no data\n"));
  EXPECT_THAT(Read("passed_on"), HasSubstr("no data"));
}

// The exit codes of the others do not matter.
TEST_F(LauncherTest, HasTheExitCodeOfWhoFailedFirst) {
  options_.workers = 2;
  const auto code = Run(absl::StrCat(
      "cd ", directory_.path(),
      "\n"
      "if [ $RANK = 0 ]; then while [ ! -e said ]; do sleep 0.01; done; exit "
      "138; fi\n"
      "printf '{\"message\": \"no data\"}' > $TORCHELASTIC_ERROR_FILE; touch "
      "said; sleep 0.2; exit 9"));
  EXPECT_THAT(std::string(code.status().message()),
              testing::ContainsRegex("^worker 1 failed with exit code 9 .*; it said: no "
                                     "data$"));
  EXPECT_EQ(ExitCodeOf(code.status()), kExitFatal);
}

// An error that was reported when it happened is not the cause of later failures.
TEST_F(LauncherTest, ForgetsTheErrorOfAWorkerThatItWentOnWithout) {
  options_.workers = 3;
  options_.min_workers = 2;
  const auto code = Run(absl::StrCat(
      "cd ", directory_.path(),
      "\n"
      "[ $RANK = 0 ] && while :; do sleep 0.01; done\n"
      "[ $RANK = 2 ] && while [ -e logs/worker1.error.json ] || [ ! -e said ]; do sleep "
      "0.01; done\n"
      "printf '%s' \"{\\\"message\\\": \\\"of $RANK\\\"}\" > $TORCHELASTIC_ERROR_FILE; "
      "touch "
      "said; exit 1"));
  EXPECT_THAT(std::string(code.status().message()),
              testing::ContainsRegex("^worker 2 failed .*; it said: of 2$"));
}

// Each worker has its own number of restarts.
TEST_F(LauncherTest, CountsTheRestartsOfEveryWorker) {
  options_.workers = 3;
  options_.max_restarts = 1;
  const auto code = Run(absl::StrCat("mkdir ", Path("first$RANK"), " && exit 1; exit 0"));
  EXPECT_TRUE(code.ok()) << code.status();
}

TEST_F(LauncherTest, LooksForTheProgramBeforeItStartsServices) {
  options_.program = {"no-such-program"};
  auto plan = MakeLaunchPlan(options_, {});
  ASSERT_TRUE(plan.ok());
  const auto code = Launcher(options_, *plan, Path("serve")).Run();
  EXPECT_EQ(ExitCodeOf(code.status()), kExitUsage);
  EXPECT_THAT(std::string(code.status().message()),
              HasSubstr("no program 'no-such-program' in PATH"));
  options_.program = {"/dev/null"};
  EXPECT_THAT(std::string(Launcher(options_, *plan, "").Run().status().message()),
              HasSubstr("not an executable file"));
  EXPECT_FALSE(std::filesystem::exists(Path("calls")));
}

TEST_F(LauncherTest, GivesUpWhenTheRestartsAreUsedUp) {
  options_.max_restarts = 2;
  options_.restart_pause = absl::Milliseconds(10);
  const auto code = Run(absl::StrCat("echo x >> ", Path("lives"), "; exit 1"));
  EXPECT_FALSE(code.ok());
  EXPECT_EQ(Read("lives"), "x\nx\nx\n");
}

TEST_F(LauncherTest, GivesUpAWorkerThatBringsItsJobNoFurther) {
  options_.max_restarts = 10;
  options_.restart_pause = absl::Milliseconds(10);
  const auto code = Run(absl::StrCat("echo x >> ", Path("lives"), "; exit 1"));
  EXPECT_THAT(
      std::string(code.status().message()),
      HasSubstr("it was started again 3 times, and the job has not got beyond step 0"));
  EXPECT_EQ(Read("lives"), "x\nx\nx\nx\n");
}

TEST_F(LauncherTest, FailsWhenNoWorkerOfItsHostIsLeft) {
  const AnsweringCoordinator coordinator;
  options_.coordinator = coordinator.address();
  options_.nnodes = "1:2";
  const auto code = Run("exit 9");
  EXPECT_THAT(std::string(code.status().message()),
              HasSubstr("worker 0 failed with exit code 9"));
}

TEST_F(LauncherTest, TellsWorkersWhereTorchMeets) {
  const AnsweringCoordinator coordinator;
  options_.coordinator = coordinator.address();
  options_.master_addr = "10.0.0.1";
  options_.master_port = 29500;
  const auto code =
      Run(absl::StrCat("echo $MASTER_ADDR $MASTER_PORT > ", Path("worker")));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(Read("worker"), "10.0.0.1 29500\n");
}

TEST_F(LauncherTest, GoesOnWithTheWorkersThatAreLeft) {
  options_.workers = 3;
  options_.min_workers = 2;
  const auto code = Run(
      absl::StrCat("if [ $RANK = 2 ]; then kill -9 $$; fi; echo done >> ", Path("done")));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(Read("done"), "done\ndone\n");
}

TEST_F(LauncherTest, PassesOnThatTryingAgainIsSafe) {
  EXPECT_EQ(ExitCodeOf(Run("exit 138").status()), kExitRetryable);
}

TEST_F(LauncherTest, SaysWhyAServiceDidNotStart) {
  WriteServe("#!/bin/sh\necho 'syncline: error: disk is full' >&2; exit 4\n");
  const auto code = Run("exit 0");
  EXPECT_EQ(ExitCodeOf(code.status()), kExitStateUnusable);
  EXPECT_THAT(std::string(code.status().message()),
              HasSubstr("coordinator did not start, exit code 4: disk is full"));
}

// Coordinators keep running; servers die at once.
constexpr char kDyingServers[] =
    "#!/bin/sh\necho 'syncline: ready control=127.0.0.1:1 admin=127.0.0.1:2'\n"
    "case \"$*\" in *'--role server'*) echo x >> \"$(dirname \"$0\")/lives\"; sleep 0.1; "
    "kill -9 $$ ;; *) exec sleep 100 ;; esac\n";

TEST_F(LauncherTest, EndsTheRunWhenAServerWithoutAJournalDies) {
  WriteServe(kDyingServers);
  for (const char* durability : {"", "none"}) {
    options_.settings["durability"] = durability;
    options_.journal_dir = *durability == 0 ? "" : Path("journal");
    const auto code = Run("sleep 100");
    EXPECT_EQ(ExitCodeOf(code.status()), kExitRetryable);
    EXPECT_THAT(
        std::string(code.status().message()),
        testing::AllOf(HasSubstr("server0 died with signal 9"),
                       HasSubstr("with --durability disk and --journal-dir DIR")));
  }
  EXPECT_EQ(Read("lives"), "x\nx\n");
}

// The other server holds its backup. If that one dies too, nothing is left.
TEST_F(LauncherTest, GoesOnWithoutAServerThatHasABackup) {
  WriteServe(
      "#!/bin/sh\necho 'syncline: ready control=127.0.0.1:1 admin=127.0.0.1:2'\n"
      "case \"$*\" in *'--role server'*) mkdir \"$(dirname \"$0\")/died\" 2>/dev/null && "
      "{ sleep 0.1; kill -9 $$; }; while [ ! -e \"$(dirname \"$0\")/end\" ]; do sleep "
      "0.01; done; kill -9 $$ ;; esac\nexec sleep 100\n");
  options_.settings["durability"] = "peer";
  options_.servers = 2;
  const auto code = Run(absl::StrCat("while [ ! -e ", Path("died"),
                                     " ]; do sleep 0.01; done; sleep 0.3; touch ",
                                     Path("end"), "; sleep 100"));
  EXPECT_EQ(ExitCodeOf(code.status()), kExitRetryable);
  EXPECT_THAT(std::string(code.status().message()), HasSubstr("died with signal 9"));
  EXPECT_TRUE(std::filesystem::exists(Path("end")));
}

// Workers are not restarted.
TEST_F(LauncherTest, StartsAServerWithAJournalAgain) {
  WriteServe(
      "#!/bin/sh\necho \"$@\" >> \"$(dirname \"$0\")/calls\"\n"
      "echo 'syncline: ready control=127.0.0.1:1 admin=127.0.0.1:2'\n"
      "case \"$*\" in *'--role server'*) mkdir \"$(dirname \"$0\")/died\" 2>/dev/null && "
      "kill -9 $$; touch \"$(dirname \"$0\")/back\" ;; esac\nexec sleep 100\n");
  options_.settings["durability"] = "disk";
  options_.journal_dir = Path("journal");
  const auto code =
      Run(absl::StrCat("while [ ! -e ", Path("back"), " ]; do sleep 0.01; done"));
  ASSERT_TRUE(code.ok()) << code.status();
  std::istringstream calls(Read("calls"));
  std::vector<std::string> servers;
  for (std::string line; std::getline(calls, line);) {
    if (absl::StrContains(line, "--role server")) servers.push_back(line);
  }
  ASSERT_EQ(servers.size(), 2U);
  EXPECT_EQ(servers[0], servers[1]);
}

// The message has the coordinator's number, and the log the name of the process.
TEST_F(LauncherTest, CallsAServerByTheNumberThatTheCoordinatorGaveIt) {
  WriteServe(
      "#!/bin/sh\ncase \"$*\" in *'--role server'*) number=' server=7' ;; esac\n"
      "echo \"syncline: ready control=127.0.0.1:1 admin=127.0.0.1:2$number\"\n"
      "[ -z \"$number\" ] && exec sleep 100\nsleep 0.1; kill -9 $$\n");
  const auto code = Run("sleep 100");
  EXPECT_THAT(std::string(code.status().message()),
              testing::AllOf(HasSubstr("server 7 died with signal 9"),
                             HasSubstr("/server0.log")));
}

// The second server starts once the first has its number.
TEST_F(LauncherTest, StartsServersOneAfterTheOther) {
  WriteServe(
      "#!/bin/sh\ncalls=\"$(dirname \"$0\")/calls\"\n"
      "case \"$*\" in *'--role server'*) echo begins >> \"$calls\"; sleep 0.1; "
      "echo ready >> \"$calls\" ;; esac\n"
      "echo 'syncline: ready control=127.0.0.1:1 admin=127.0.0.1:2'\nexec sleep 100\n");
  options_.servers = 2;
  const auto code = Run("exit 0");
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(Read("calls"), "begins\nready\nbegins\nready\n");
}

TEST_F(LauncherTest, GivesUpAServerThatBringsItsJobNoFurther) {
  WriteServe(kDyingServers);
  options_.settings["durability"] = "disk";
  options_.journal_dir = Path("journal");
  options_.restart_pause = absl::Milliseconds(10);
  const auto code = Run("sleep 100");
  EXPECT_EQ(ExitCodeOf(code.status()), kExitRetryable);
  EXPECT_THAT(std::string(code.status().message()),
              HasSubstr("started again 3 times, and the job has not got beyond"));
  EXPECT_EQ(Read("lives"), "x\nx\nx\nx\n");
}

TEST_F(LauncherTest, StopsEverythingWithinTwoSecondsOfCtrlC) {
  options_.workers = 2;
  const pid_t launcher = fork();
  if (launcher == 0) {
    std::freopen(Path("said").c_str(), "w", stderr);
    const auto code = Run(absl::StrCat("trap '' TERM; mkdir ", Path("up$RANK"),
                                       "; while :; do sleep 0.01; done"));
    _exit(code.ok() ? *code : 1);
  }
  ASSERT_TRUE(Eventually([&] {
    return std::filesystem::exists(Path("up0")) && std::filesystem::exists(Path("up1"));
  }));
  const absl::Time before = absl::Now();
  kill(launcher, SIGINT);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_LT(absl::Now() - before, absl::Seconds(2));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kExitInterrupted);
  EXPECT_THAT(Read("said"), HasSubstr("syncline: Ctrl-C: ending ranks 0, 1 and 2 "
                                      "services with exit code 130; killed after 1s"));
}

}  // namespace
}  // namespace syncline
