// Interprets how a child of `syncline run` ended, and decides when it is started again.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "cli/process.h"
#include "comm/base/failure.h"

namespace syncline {

// Returns the Failure for an exit code of our own services.
Failure FailureOfExit(int wait_status);

bool Succeeded(int wait_status);

// Returns the Failure of a worker, for exit codes that are about the job. Programs use
// the small exit codes for other things.
Failure FailureOfWorker(int wait_status);

// Returns text such as "failed with exit code 3".
std::string HowItFailed(int wait_status);
// Returns text such as "SIGINT (Ctrl-C)".
std::string SignalName(int signal);

// Returns the process's last message as ": disk is full", or an empty string. Prefers an
// error message in our format.
std::string LastWords(const ProcessEvent& event);

// Returns the last logged line, or an empty string.
std::string LastLine(const ProcessEvent& event);

// The step of each job of a run, by job name.
using JobSteps = std::map<std::string, uint64_t>;

// Counts how often a process was restarted without progress of its job. After three
// restarts without progress there is no further one.
class FruitlessRestarts {
 public:
  static constexpr int kMost = 3;

  // Call when the process has died. `steps`: progress of the jobs of its run; empty when
  // unknown.
  void NoteDeath(const JobSteps& steps);
  bool AreUsedUp() const { return count_ >= kMost; }
  // Call on a restart. Returns the number of restarts in a row.
  int NoteRestart() { return ++count_; }

  // Returns "it was started again 3 times, and the job has not got beyond step 7".
  // For several jobs: "beyond steps 7 and 9".
  std::string Describe() const;

 private:
  int count_ = 0;
  JobSteps steps_;  // highest steps seen at its deaths
};

// Returns zero before the first restart, then `unit`, twice that, four times that and so
// on, at most a minute.
absl::Duration PauseBefore(int restart, absl::Duration unit);

// Returns text such as "in 2s ", or an empty string.
std::string DescribePause(absl::Duration pause);

}  // namespace syncline
