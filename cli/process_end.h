// What the end of a child of `syncline run` says, and when it is started again.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "cli/process.h"
#include "comm/base/failure.h"

namespace syncline {

// Exit codes of our own services keep their meaning.
Failure FailureOfExit(int wait_status);

bool Succeeded(int wait_status);

// Of a worker's, those that say something of the job; programs use the small ones for
// much else.
Failure FailureOfWorker(int wait_status);

// "failed with exit code 3".
std::string HowItFailed(int wait_status);
// "SIGINT (Ctrl-C)".
std::string SignalName(int signal);

// The last thing that a process had to say, in its own words if it failed as ours do:
// ": disk is full", or nothing.
std::string LastWords(const ProcessEvent& event);

// The last line that is logged of it, or nothing.
std::string LastLine(const ProcessEvent& event);

// How far each job of a run is, by its name.
using JobSteps = std::map<std::string, uint64_t>;

// How often something that died was started again since its job last came further. What
// has brought it no further three times is not tried a fourth time.
class FruitlessRestarts {
 public:
  static constexpr int kMost = 3;

  // When it has died. How far the jobs of its run are; none when nobody knows.
  void NoteDeath(const JobSteps& steps);
  bool AreUsedUp() const { return count_ >= kMost; }
  // When it is started again. Returns how often that was in a row.
  int NoteRestart() { return ++count_; }

  // "it was started again 3 times, and the job has not come further than step 7"; of
  // several jobs, "than steps 7 and 9".
  std::string Describe() const;

 private:
  int count_ = 0;
  JobSteps steps_;  // the furthest that was seen when it died
};

// None before the first restart, then `unit`, twice and four times that, and so on, a
// minute at most.
absl::Duration PauseBefore(int restart, absl::Duration unit);

// "in 2s ", or nothing.
std::string DescribePause(absl::Duration pause);

}  // namespace syncline
