#include "cli/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/eventually.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool IsAlive(pid_t pid) {
  // A zombie that was not reaped yet counts as dead.
  const std::string stat = ReadAll(absl::StrCat("/proc/", pid, "/stat"));
  const size_t after_name = stat.rfind(')');
  return after_name != std::string::npos && stat[after_name + 2] != 'Z';
}

class ProcessGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    auto group = ProcessGroup::Create();
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }

  std::string Path(const std::string& name) const { return directory_.File(name); }

  ProcessSpec Shell(const std::string& name, const std::string& script) const {
    ProcessSpec spec;
    spec.name = name;
    spec.argv = {"/bin/sh", "-c", script};
    spec.out = Output::kLog;
    spec.err = Output::kLog;
    spec.log_path = Path(name + ".log");
    return spec;
  }

  ProcessEvent NextEvent() { return group_->Next(absl::Now() + absl::Seconds(20)); }

  pid_t ReadPid(const std::string& name) const {
    int pid = -1;
    EXPECT_TRUE(Eventually([&] { return absl::SimpleAtoi(ReadAll(Path(name)), &pid); }));
    return pid;
  }

  TempDirectory directory_;
  std::unique_ptr<ProcessGroup> group_;
};

TEST_F(ProcessGroupTest, ReportsExitCodeAndLastLines) {
  ASSERT_TRUE(
      group_->Start(Shell("worker1", "echo one; echo two >&2; printf three; exit 3"))
          .ok());
  const ProcessEvent event = NextEvent();
  ASSERT_EQ(event.kind, ProcessEvent::kExit);
  EXPECT_EQ(event.name, "worker1");
  EXPECT_EQ(DescribeExit(event.wait_status), "exit code 3");
  EXPECT_THAT(event.tail, testing::UnorderedElementsAre("one", "two", "three"));
  EXPECT_THAT(ReadAll(Path("worker1.log")), HasSubstr("one\n"));
  EXPECT_TRUE(group_->empty());
}

TEST_F(ProcessGroupTest, ReportsTheSignalThatKilledAChild) {
  ASSERT_TRUE(group_->Start(Shell("worker0", "kill -9 $$")).ok());
  EXPECT_EQ(DescribeExit(NextEvent().wait_status), "signal 9 (Killed)");
}

TEST_F(ProcessGroupTest, KeepsAllOfALargeOutput) {
  ASSERT_TRUE(group_->Start(Shell("loud", "seq 1 200000")).ok());
  const ProcessEvent event = NextEvent();
  ASSERT_EQ(event.kind, ProcessEvent::kExit);
  EXPECT_EQ(event.tail.size(), 20u);
  EXPECT_EQ(event.tail.back(), "200000");
  EXPECT_EQ(std::filesystem::file_size(Path("loud.log")),
            1288895u);  // as counted by seq 1 200000 | wc -c
}

TEST_F(ProcessGroupTest, GivesChildrenTheirEnvironmentAndNoInput) {
  setenv("SYNCLINE_TEST_A", "old", 1);
  setenv("SYNCLINE_TEST_B", "kept", 1);
  ProcessSpec spec = Shell("env", "cat; echo $SYNCLINE_TEST_A $SYNCLINE_TEST_B $RANK");
  spec.env = {{"SYNCLINE_TEST_A", "new"}, {"RANK", "2"}};
  ASSERT_TRUE(group_->Start(spec).ok());
  EXPECT_THAT(NextEvent().tail, ElementsAre("new kept 2"));
}

TEST_F(ProcessGroupTest, TeesLinesWithThePrefixOfTheirProcess) {
  testing::internal::CaptureStdout();
  ProcessSpec tee = Shell("worker1", "echo loss 0.5; printf end");
  tee.out = Output::kTee;
  ASSERT_TRUE(group_->Start(tee).ok());
  ASSERT_EQ(NextEvent().kind, ProcessEvent::kExit);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "[worker1]: loss 0.5\n[worker1]: end\n");
  EXPECT_EQ(ReadAll(Path("worker1.log")), "loss 0.5\nend");
}

TEST_F(ProcessGroupTest, CallsBackForEachLine) {
  std::vector<std::string> lines;
  ProcessSpec spec = Shell("server0", "echo a; echo b");
  spec.on_line = [&](std::string_view line) { lines.emplace_back(line); };
  ASSERT_TRUE(group_->Start(spec).ok());
  while (NextEvent().kind != ProcessEvent::kExit) continue;
  EXPECT_THAT(lines, ElementsAre("a", "b"));
  EXPECT_TRUE(group_->empty());
}

TEST_F(ProcessGroupTest, WakesUpForALine) {
  ProcessSpec spec = Shell("server0", "echo ready; sleep 100");
  spec.on_line = [](std::string_view) {};
  ASSERT_TRUE(group_->Start(spec).ok());
  EXPECT_EQ(NextEvent().kind, ProcessEvent::kOutput);
}

TEST_F(ProcessGroupTest, SaysThatAProgramIsMissing) {
  ProcessSpec missing = Shell("worker0", "");
  missing.argv = {"no-such-program"};
  const absl::Status status = group_->Start(missing);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such-program"));
  EXPECT_TRUE(group_->empty());

  ProcessSpec directory = Shell("worker0", "");
  directory.argv = {"/tmp"};
  EXPECT_EQ(group_->Start(directory).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ProcessGroupTest, StartsTheSameNameAgainAfterItsExit) {
  ASSERT_TRUE(group_->Start(Shell("worker1", "echo first")).ok());
  NextEvent();
  ASSERT_TRUE(group_->Start(Shell("worker1", "echo second")).ok());
  NextEvent();
  EXPECT_EQ(ReadAll(Path("worker1.log")), "first\nsecond\n");
}

TEST_F(ProcessGroupTest, StopsPolitelyFirst) {
  ASSERT_TRUE(group_
                  ->Start(Shell("polite", absl::StrCat("trap 'exit 7' TERM; echo $$ > ",
                                                       Path("pid"),
                                                       "; while :; do sleep 0.01; done")))
                  .ok());
  ReadPid("pid");
  group_->Stop("polite", absl::Seconds(20));
  EXPECT_EQ(DescribeExit(NextEvent().wait_status), "exit code 7");
}

TEST_F(ProcessGroupTest, KillsWhatIgnoresSigtermAfterTheGrace) {
  ASSERT_TRUE(
      group_
          ->Start(Shell("deaf", absl::StrCat("trap '' TERM; echo $$ > ", Path("pid"),
                                             "; while :; do sleep 0.01; done")))
          .ok());
  ReadPid("pid");
  const absl::Time before = absl::Now();
  group_->Stop("deaf", absl::Milliseconds(200));
  EXPECT_EQ(DescribeExit(NextEvent().wait_status), "signal 9 (Killed)");
  EXPECT_GE(absl::Now() - before, absl::Milliseconds(200));
}

TEST_F(ProcessGroupTest, StopsAProcessThatIsSuspended) {
  ASSERT_TRUE(group_->Start(Shell("frozen", "kill -STOP $$; exit 1")).ok());
  EXPECT_EQ(group_->Next(absl::Now() + absl::Milliseconds(50)).kind,
            ProcessEvent::kTimeout);
  group_->Stop("frozen", absl::Seconds(20));
  EXPECT_THAT(DescribeExit(NextEvent().wait_status), HasSubstr("signal 15"));
}

TEST_F(ProcessGroupTest, TakesGrandchildrenAlong) {
  ASSERT_TRUE(
      group_->Start(Shell("parent", absl::StrCat("sleep 100 & echo $! > ", Path("pid"))))
          .ok());
  const ProcessEvent event = NextEvent();
  ASSERT_EQ(event.kind, ProcessEvent::kExit);
  const pid_t grandchild = ReadPid("pid");
  EXPECT_TRUE(Eventually([&] { return !IsAlive(grandchild); }));
}

TEST_F(ProcessGroupTest, TakesGrandchildrenInSessionsOfTheirOwnAlong) {
  ASSERT_TRUE(
      group_
          ->Start(Shell("parent", absl::StrCat("setsid sh -c 'echo $$ > ", Path("pid"),
                                               "; exec sleep 100' & sleep 100")))
          .ok());
  const pid_t grandchild = ReadPid("pid");
  EXPECT_TRUE(IsAlive(grandchild));
  group_.reset();
  EXPECT_FALSE(IsAlive(grandchild));
}

// Sends SIGTERM to this process once the tee's pipe is full and has no reader.
TEST_F(ProcessGroupTest, HearsSignalsWhileNobodyReadsWhatItShows) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const int real_stdout = dup(STDOUT_FILENO);
  dup2(pipe_ends[1], STDOUT_FILENO);
  ProcessSpec flood = Shell("flood", "yes");
  flood.out = Output::kTee;
  const absl::Status started = group_->Start(flood);
  dup2(real_stdout, STDOUT_FILENO);
  ASSERT_TRUE(started.ok()) << started;
  while (std::filesystem::file_size(Path("flood.log")) < 195000) {
    ASSERT_EQ(group_->Next(absl::Now() + absl::Milliseconds(10)).kind,
              ProcessEvent::kTimeout);
  }
  kill(getpid(), SIGTERM);
  EXPECT_EQ(NextEvent().signal, SIGTERM);
  group_->Stop("flood", absl::ZeroDuration());
  EXPECT_EQ(NextEvent().kind, ProcessEvent::kExit);
  group_.reset();
  for (const int fd : {pipe_ends[0], pipe_ends[1], real_stdout}) close(fd);
}

TEST_F(ProcessGroupTest, SurvivesAReaderThatIsGone) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const int real_stdout = dup(STDOUT_FILENO);
  dup2(pipe_ends[1], STDOUT_FILENO);
  ProcessSpec tee = Shell("tee", "echo one; echo two");
  tee.out = Output::kTee;
  const absl::Status started = group_->Start(tee);
  dup2(real_stdout, STDOUT_FILENO);
  for (const int fd : {pipe_ends[0], pipe_ends[1], real_stdout}) close(fd);
  ASSERT_TRUE(started.ok()) << started;
  const ProcessEvent event = NextEvent();
  EXPECT_EQ(event.kind, ProcessEvent::kExit);
  EXPECT_THAT(event.tail, ElementsAre("one", "two"));
}

// A child that writes without end must not hide the exit of another one.
TEST_F(ProcessGroupTest, SeesAnExitBesideAChildThatFloods) {
  ASSERT_TRUE(group_->Start(Shell("a flood", "yes")).ok());
  ASSERT_TRUE(group_->Start(Shell("short", "exit 4")).ok());
  const ProcessEvent event = NextEvent();
  EXPECT_EQ(event.name, "short");
  EXPECT_EQ(DescribeExit(event.wait_status), "exit code 4");
}

TEST_F(ProcessGroupTest, GivesChildrenTheDefaultForBrokenPipes) {
  ASSERT_TRUE(group_->Start(Shell("pipe", "yes | head -1; kill -PIPE $$")).ok());
  EXPECT_THAT(DescribeExit(NextEvent().wait_status), HasSubstr("signal 13"));
}

TEST_F(ProcessGroupTest, ReportsItsOwnSignals) {
  ASSERT_TRUE(group_->Start(Shell("worker0", "sleep 100")).ok());
  kill(getpid(), SIGINT);
  const ProcessEvent event = NextEvent();
  EXPECT_EQ(event.kind, ProcessEvent::kSignal);
  EXPECT_EQ(event.signal, SIGINT);
}

// Threads of a library that existed before the group behave like this.
TEST_F(ProcessGroupTest, HearsOfAnExitThoughAnotherThreadTakesTheSignal) {
  std::atomic<bool> is_over = false;
  std::thread other([&is_over] {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    while (!is_over) getppid();  // the signal is handled when a system call returns
  });
  ASSERT_TRUE(group_->Start(Shell("a", "sleep 0.05; exec >&- 2>&-; sleep 0.05")).ok());
  const ProcessEvent event = group_->Next(absl::InfiniteFuture());
  EXPECT_EQ(event.kind, ProcessEvent::kExit);
  is_over = true;
  other.join();
}

TEST_F(ProcessGroupTest, TimesOut) {
  ASSERT_TRUE(group_->Start(Shell("worker0", "sleep 100")).ok());
  EXPECT_EQ(group_->Next(absl::Now() + absl::Milliseconds(20)).kind,
            ProcessEvent::kTimeout);
}

TEST_F(ProcessGroupTest, TellsTheCpuTimeOfAChildThatRuns) {
  EXPECT_FALSE(group_->CpuSeconds("worker0").has_value());
  ASSERT_TRUE(group_->Start(Shell("worker0", "while :; do :; done")).ok());
  EXPECT_TRUE(Eventually([&] { return group_->CpuSeconds("worker0") > 0.05; }));
  ASSERT_TRUE(group_->Start(Shell("worker1", "sleep 100")).ok());
  EXPECT_LT(group_->CpuSeconds("worker1"), 10);
}

TEST_F(ProcessGroupTest, LeavesNothingBehindWhenTheLauncherIsKilled) {
  const pid_t launcher = fork();
  if (launcher == 0) {
    auto group = ProcessGroup::Create();
    const std::string script = absl::StrCat("sleep 100 & echo $! > ", Path("grandchild"),
                                            "; echo $$ > ", Path("child"), "; wait");
    if (!group.ok() || !(*group)->Start(Shell("worker0", script)).ok()) _exit(1);
    (*group)->Next(absl::InfiniteFuture());
    _exit(1);
  }
  const pid_t child = ReadPid("child");
  const pid_t grandchild = ReadPid("grandchild");
  ASSERT_TRUE(IsAlive(child));
  ASSERT_TRUE(IsAlive(grandchild));
  kill(launcher, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(Eventually([&] { return !IsAlive(child) && !IsAlive(grandchild); }));
}

}  // namespace
}  // namespace syncline
