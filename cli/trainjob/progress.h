// What a TrainJob is told about a job: percentage, time left and metrics, computed from
// statuses of the coordinator (comm/rpc/status_json.h). Nothing here asks or sends.
//
//   TrainJobProgress progress({.job = "bert", .run_id = "r1"});
//   if (progress.Add(status_json, clock.Now())) send(progress.Message(absl::Now()));
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace syncline {

// The time that the rest of a job takes, from the times of its last steps.
class TimeLeft {
 public:
  // `now` is monotonic.
  void Add(uint64_t step, absl::Duration now);
  // Returns nullopt if nothing is known: fewer than two changes of the step were seen, or
  // the last one was so long ago that the earlier ones say nothing.
  std::optional<absl::Duration> Until(uint64_t step, absl::Duration now) const;
  // Returns steps in a second, or nullopt.
  std::optional<double> Rate(absl::Duration now) const;

 private:
  static constexpr size_t kMostChanges = 32;

  std::optional<absl::Duration> PerStep(absl::Duration now) const;

  std::optional<uint64_t> step_;  // the last one seen
  // Times at which the step was seen to have changed. The first sight is no change.
  std::deque<std::pair<absl::Duration, uint64_t>> changes_;
};

class TrainJobProgress {
 public:
  struct Options {
    std::string job = "default";
    // Not empty: any job of this run counts, because programs may name their jobs. The
    // newest of several is shown.
    std::string run_id = {};
  };

  explicit TrainJobProgress(Options options) : options_(std::move(options)) {}

  // Takes a status. Returns whether it has a job of this run. `now` is monotonic.
  bool Add(const std::string& status_json, absl::Duration now);
  // The workers have succeeded: everything is done, however many steps were expected.
  void Finish() { is_done_ = true; }

  const std::string& job() const { return name_; }

  // Returns the body of the request, an UpdateTrainJobStatusRequest of Kubeflow's API
  // trainer.kubeflow.org/v1alpha1:
  //
  //   {"trainerStatus":{"progressPercentage":45,"estimatedRemainingSeconds":120,
  //    "metrics":[{"name":"step","value":"450"},...],
  //    "lastUpdatedTime":"2026-01-23T10:30:45Z"}}
  //
  // `at`: when the status was taken. Percentage and time are left out while they are not
  // known, and before the end the percentage is 99 at most. REQUIRES: Add has returned
  // true.
  std::string Message(absl::Time at) const;
  // Returns the same without the time: equal for statuses between which nothing changed.
  std::string News() const;

 private:
  std::optional<int> Percentage() const;
  std::optional<int64_t> SecondsLeft() const;

  const Options options_;
  bool is_done_ = false;
  std::string name_ = {};
  uint64_t step_ = 0;
  uint64_t total_steps_ = 0;  // 0: unknown
  std::vector<std::pair<std::string, double>> metrics_ = {};
  absl::Duration now_ = {};
  std::optional<uint32_t> number_ = std::nullopt;  // of the job
  TimeLeft time_left_ = {};
};

}  // namespace syncline
