// Registry of the runs on this host whose launcher started its own coordinator, on a port
// of its own. It lets commands such as `syncline status` find these without an address.
//
// Each run is a file in the user's state directory. Its launcher holds a lock on the file
// while it lives.
//
// Thread safety: a LocalRun is used by one thread; functions may be called from any
// thread.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "comm/base/status.h"
#include "comm/base/unique_fd.h"

namespace syncline {

// Announces a run until it is destroyed. Announces nothing if the directory is empty or
// cannot be written.
class LocalRun {
 public:
  LocalRun() = default;
  LocalRun(const std::string& directory, const std::string& coordinator,
           const std::string& job);
  ~LocalRun();
  LocalRun(LocalRun&& other) noexcept = default;
  LocalRun& operator=(LocalRun&& other) noexcept;

 private:
  std::string path_;
  UniqueFd lock_;
};

struct FoundRun {
  std::string coordinator;  // HOST:PORT
  std::string job;
};

// Returns the runs whose launchers live. Removes the files of dead ones.
std::vector<FoundRun> FindLocalRuns(const std::string& directory);

// Returns the path in the user's state directory; empty when there is no such directory.
std::string LocalRunsDirectory();

// Return the address that a command asks: `given` unless empty; otherwise 127.0.0.1:7070
// if a process listens there; otherwise the only run of this host. Fail with
// InvalidArgument (Failure::kUsage), which lists the runs, when there are several. If a
// run is of `job`, only runs of that job count.
absl::StatusOr<std::string> ChooseCoordinator(const std::string& given,
                                              const std::vector<FoundRun>& runs,
                                              bool default_listens);
absl::StatusOr<std::string> CoordinatorToAsk(const std::string& given,
                                             const std::string& job = "");
// Chooses again, for a command that keeps running when its coordinator stops answering or
// does not know the job: another coordinator may run it by now. Returns `asked` if there
// is no choice.
std::string CoordinatorToAskNow(const std::string& given, const std::string& job,
                                const std::string& asked);
// Return the jobs of the runs of this host that use this coordinator.
std::vector<std::string> JobsStartedWith(const std::string& coordinator,
                                         const std::vector<FoundRun>& runs);
std::vector<std::string> JobsStartedWith(const std::string& coordinator);
// Returns the runs of `job`; all runs if none is of this job.
std::vector<FoundRun> RunsOf(const std::string& job, std::vector<FoundRun> runs);

// Help text for the JOB argument of a command that shows all jobs or one of them.
inline constexpr char kChosenJob[] =
    "Show only this job; if this host has several runs, ask the run of this job";

// Adds --coordinator to such a command.
void AddCoordinatorFlag(CLI::App& command, std::string* coordinator);

// Sets flags.coordinator to the address that the command asks, then calls `action`.
template <typename Flags>
absl::StatusOr<int> Asking(Flags& flags, absl::StatusOr<int> (*action)(const Flags&)) {
  std::string job;
  if constexpr (requires { job = flags.job; }) job = flags.job;
  if constexpr (requires { flags.given_coordinator; }) {
    flags.given_coordinator = flags.coordinator;
  }
  SYNCLINE_ASSIGN_OR_RETURN(flags.coordinator, CoordinatorToAsk(flags.coordinator, job));
  return action(flags);
}

}  // namespace syncline
