// The child processes of `syncline run`: started, watched, restarted and stopped by one
// thread.
//
// Every child has its own process group and no standard input. None outlives the
// launcher: on a clean way out Stop() ends the whole group and the destructor what left it
// for a session of its own (cli/orphans.h), and after `kill -9` of the launcher the kernel
// kills the children (PR_SET_PDEATHSIG) and a guard process the groups, and so the
// children's children.
//
// Neither a child that floods its output nor a reader of ours that stops reading keeps the
// launcher from signals and exits: each is read a bounded amount at a time, and what is
// shown is kept while nobody takes it (cli/tee_stream.h).
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto group, ProcessGroup::Create());
//   const ProcessSpec train = {.name = "worker1", .argv = {"python3", "train.py"}};
//   SYNCLINE_RETURN_IF_ERROR(group->Start(train));
//   for (;;) {
//     const ProcessEvent event = group->Next(absl::InfiniteFuture());
//     if (event.kind == ProcessEvent::kExit) ...
//   }
//
// Not thread-safe; make only one per process, before other threads start: it takes over
// SIGCHLD, SIGINT, SIGTERM and SIGHUP and ignores SIGPIPE until it is destroyed. Its
// children get all of them back.
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

// Where one of a child's output streams goes.
enum class Output {
  kInherit,  // where the launcher's goes
  kLog,      // to the log file only
  kTee,      // to the log file, and line by line with the prefix "[name]: " where the
             // launcher's goes
};

struct ProcessSpec {
  std::string name;                                      // unique in the group
  std::vector<std::string> argv;                         // argv[0] is looked up in PATH
  std::vector<std::pair<std::string, std::string>> env;  // added to the launcher's
  Output out = Output::kInherit;
  Output err = Output::kInherit;
  std::string log_path;                           // appended to; needed by kLog and kTee
  std::function<void(std::string_view)> on_line;  // called for each logged line, if set
};

struct ProcessEvent {
  enum Kind { kExit, kSignal, kOutput, kTimeout };
  Kind kind = kTimeout;
  std::string name;              // kExit: who
  int wait_status = 0;           // kExit: as of waitpid
  absl::Duration lived;          // kExit
  std::deque<std::string> tail;  // kExit: its last logged lines
  int signal = 0;                // kSignal: what the launcher received
  // kOutput: on_line was called at least once.
};

// What a child that ended has used, its waited-for children included.
struct ProcessUsage {
  double cpu_seconds = 0;
  int64_t peak_rss_bytes = 0;
};

// "exit code 3", "signal 9 (Killed)".
std::string DescribeExit(int wait_status);

// Before anything is started for it. NotFound (Failure::kUsage) when it cannot be run.
absl::Status CheckProgram(const std::string& program);

class ProcessGroup {
 public:
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Create();

  // Kills what still runs, and waits until what is shown was taken, or for a signal.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // NotFound or PermissionDenied when the program cannot be executed. A name may be used
  // again after its kExit.
  absl::Status Start(const ProcessSpec& spec);

  // Pumps output until something happens or `deadline` has come. A child whose kExit is
  // reported is gone with its whole process group, and all its output is logged.
  ProcessEvent Next(absl::Time deadline);

  // SIGTERM to the child's group now, SIGKILL after `grace`. Its kExit still comes.
  void Stop(const std::string& name, absl::Duration grace);

  bool IsRunning(const std::string& name) const { return children_.count(name) != 0; }
  bool empty() const { return children_.empty(); }

  // Of a child that runs, so far, without its own children. Nothing where it is gone.
  std::optional<double> CpuSeconds(const std::string& name) const;

  // Of the children whose kExit was reported, by name; of a name used again, the last.
  const std::map<std::string, ProcessUsage>& usage() const { return usage_; }

 private:
  // One output stream of a child that the launcher reads.
  struct Stream {
    UniqueFd pipe;
    Output output = Output::kLog;
    TeeStream* target = nullptr;  // for kTee
    std::string partial;          // a line that has not ended yet
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
  std::deque<int> signals_;         // received and not reported yet
  bool interrupted_ = false;        // a signal was received
  std::map<int, TeeStream> shown_;  // the launcher's own streams, by descriptor
  std::unique_ptr<Orphans> orphans_;
  bool on_line_called_ = false;  // since the last event
  UniqueFd signal_fd_;
  UniqueFd guard_pipe_;  // its end of file tells the guard that the launcher is gone
  pid_t guard_ = -1;
};

}  // namespace syncline
