// The child processes of `syncline run`. One thread starts, watches and stops them.
//
// Every child has its own process group and no standard input. No child outlives the
// launcher. On a clean exit Stop() ends the whole process group, and the destructor ends
// processes that moved to a session of their own (cli/orphans.h). After `kill -9` of the
// launcher the kernel kills the children (PR_SET_PDEATHSIG), and a guard process kills
// their groups, which contain the children's children.
//
// The launcher keeps handling signals and exits even if a child floods its output or the
// reader of the launcher's output stops reading. It reads a bounded amount of each stream
// at a time, and buffers output that is not taken (cli/tee_stream.h).
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto group, ProcessGroup::Create());
//   const ProcessSpec train = {.name = "worker1", .argv = {"python3", "train.py"}};
//   SYNCLINE_RETURN_IF_ERROR(group->Start(train));
//   for (;;) {
//     const ProcessEvent event = group->Next(absl::InfiniteFuture());
//     if (event.kind == ProcessEvent::kExit) ...
//   }
//
// Not thread-safe. Create only one per process, before other threads start: until its
// destruction it owns SIGCHLD, SIGINT, SIGTERM and SIGHUP and ignores SIGPIPE. Children
// start with the default handling of all of these.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/orphans.h"
#include "cli/tee_stream.h"
#include "comm/base/unique_fd.h"

namespace syncline {

// Where an output stream of a child goes.
enum class Output {
  kInherit,  // to the launcher's own stream
  kLog,      // to the log file only
  // To the log file, and by lines with the prefix "[name]: " to the launcher's own
  // stream.
  kTee,
};

struct ProcessSpec {
  std::string name;               // unique in the group
  std::vector<std::string> argv;  // argv[0] is looked up in PATH
  // added to the launcher's environment
  std::vector<std::pair<std::string, std::string>> env;
  Output out = Output::kInherit;
  Output err = Output::kInherit;
  std::string log_path;                           // appended to; kLog and kTee need it
  std::function<void(std::string_view)> on_line;  // called for each logged line, if set
};

struct ProcessEvent {
  enum Kind { kExit, kSignal, kOutput, kTimeout };
  Kind kind = kTimeout;
  std::string name;              // kExit: the child
  int wait_status = 0;           // kExit: the status of waitpid
  absl::Duration lived;          // kExit: time since the start
  std::deque<std::string> tail;  // kExit: its last logged lines
  int signal = 0;                // kSignal: what the launcher received
  // kOutput: on_line was called at least once.
};

// Resources that an ended child used, including its own children that it waited for.
struct ProcessUsage {
  double cpu_seconds = 0;
  int64_t peak_rss_bytes = 0;
};

// Returns text such as "exit code 3" or "signal 9 (Killed)".
std::string DescribeExit(int wait_status);

// Checks a program before anything is started for it. Fails with NotFound
// (Failure::kUsage) when it cannot be run.
absl::Status CheckProgram(const std::string& program);

class ProcessGroup {
 public:
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Create();

  // Kills what still runs. Waits until all buffered output is written, or for a signal.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Starts a child. Fails with NotFound or PermissionDenied when the program cannot be
  // executed. A name may be used again after its kExit.
  absl::Status Start(const ProcessSpec& spec);

  // Forwards output until an event happens or `deadline` is reached. When kExit is
  // reported, the child's whole process group is gone and all its output is logged.
  ProcessEvent Next(absl::Time deadline);

  // Sends SIGTERM to the child's group now, and SIGKILL after `grace`. Its kExit still
  // comes.
  void Stop(const std::string& name, absl::Duration grace);

  bool IsRunning(const std::string& name) const { return children_.count(name) != 0; }
  bool empty() const { return children_.empty(); }

  // Returns the CPU seconds so far of a running child, without its own children. nullopt
  // if it does not run.
  std::optional<double> CpuSeconds(const std::string& name) const;

  // Usage of the children whose kExit was reported, by name. For a reused name: of the
  // last.
  const std::map<std::string, ProcessUsage>& usage() const { return usage_; }

 private:
  // One output stream of a child that the launcher reads.
  struct Stream {
    UniqueFd pipe;
    Output output = Output::kLog;
    TeeStream* target = nullptr;  // for kTee
    std::string partial;          // a line without its end yet
  };
  struct Child {
    ProcessSpec spec;
    pid_t pid = -1;
    UniqueFd log;
    Stream streams[2];
    std::deque<std::string> tail;
    absl::Time started;
    absl::Time kill_at = absl::InfiniteFuture();
  };

  ProcessGroup() = default;
  absl::Status StartGuard();
  absl::Status Spawn(Child& child);
  TeeStream& Shown(int fd);
  void Pump(Child& child, Stream& stream);
  void EndLine(Child& child, Stream& stream);
  void Wait(absl::Time deadline);
  void ReadSignals();
  void WaitUntilShown();
  bool IsKnown(pid_t child) const;
  bool Reap(ProcessEvent* event);
  void KillOverdue();
  void TellGuard(pid_t pid);

  std::map<std::string, Child> children_;
  std::map<std::string, ProcessUsage> usage_;
  std::deque<int> signals_;         // received, not reported yet
  bool interrupted_ = false;        // a signal was received
  std::map<int, TeeStream> shown_;  // the launcher's own streams, by descriptor
  std::unique_ptr<Orphans> orphans_;
  bool on_line_called_ = false;  // since the last event
  UniqueFd signal_fd_;
  UniqueFd guard_pipe_;  // its end of file tells the guard that the launcher is gone
  pid_t guard_ = -1;
};

}  // namespace syncline
