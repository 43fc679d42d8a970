// The runs of `syncline run` on this host whose coordinators it started itself, on ports
// of their own: so that `syncline status` finds them without being told where.
//
// Each is a file in the user's state directory, locked for as long as its launcher lives.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "comm/base/status.h"
#include "comm/base/unique_fd.h"

namespace syncline {

// Where a run is announced; not announced at all where there is no place for it.
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

// Those that live. What dead launchers left is removed.
std::vector<FoundRun> FindLocalRuns(const std::string& directory);

// In the user's state directory; empty when there is none.
std::string LocalRunsDirectory();

// What a command asks: the coordinator that is given; otherwise 127.0.0.1:7070 if somebody
// listens there, or else the only run of this host. InvalidArgument (Failure::kUsage) names
// the runs when there are several.
absl::StatusOr<std::string> ChooseCoordinator(const std::string& given,
                                              const std::vector<FoundRun>& runs,
                                              bool default_listens);
absl::StatusOr<std::string> CoordinatorToAsk(const std::string& given,
                                             const std::string& job = "");
// Of a command that goes on, when the one that it asks does not answer any more, or does
// not know the job: another one may by now. `asked` where there is none.
std::string CoordinatorToAskNow(const std::string& given, const std::string& job,
                                const std::string& asked);
// Of those runs of this host whose coordinator this is.
std::vector<std::string> JobsStartedWith(const std::string& coordinator,
                                         const std::vector<FoundRun>& runs);
std::vector<std::string> JobsStartedWith(const std::string& coordinator);
// Of several runs, those whose job this is; all where it is of none, or not given.
std::vector<FoundRun> RunsOf(const std::string& job, std::vector<FoundRun> runs);

// The argument of a command that shows all jobs of a coordinator, or one of them.
inline constexpr char kChosenJob[] =
    "Show only this job; of several runs on this host, ask that of it";

// --coordinator of such a command.
void AddCoordinatorFlag(CLI::App& command, std::string* coordinator);

// What the command does, once it is known whom it asks.
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
