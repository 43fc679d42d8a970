// The automatic answers of the coordinator when a job misses its goals (docs/goals.md),
// as users specify them:
//
//   exclude_straggler,staleness<=8,add_server,factor=2,after_s=60,pause_s=300,per_hour=2,
//   min_workers=3
//
// The default is no answers.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncline {

enum class AnswerKind : uint8_t {
  kExcludeStraggler,  // removes a worker that others wait for
  kStaleness,         // mode ssp: allows workers to be further ahead
  kAddServer,         // gives a share of a server that has two to one that stands by
};
inline constexpr size_t kAnswerKinds = 3;
inline constexpr size_t kMaxAnswersBytes = 256;

// Returns names such as "exclude_straggler", used in specifications, JSON and metrics.
std::string_view AnswerName(AnswerKind kind);

struct AnswerSpec {
  bool excludes = false;
  uint32_t staleness = 0;  // upper limit; 0: the staleness stays as it is
  bool adds_server = false;

  // A straggler takes this many times as long for its own part of a step as the next
  // slowest.
  double factor = 2;
  // time for which it must have been a straggler
  absl::Duration after = absl::Minutes(1);
  absl::Duration pause = absl::Minutes(5);  // minimum time between two answers
  uint32_t per_hour = 2;                    // limit of exclusions
  uint32_t min_workers = 0;  // workers that must stay; 0: half of the job's

  bool empty() const { return !excludes && staleness == 0 && !adds_server; }
  // Returns how many of a job's `workers` must stay.
  uint32_t LeastWorkers(uint32_t workers) const {
    return min_workers > 0 ? min_workers : (workers + 1) / 2;
  }
};

// Returns the same text for all specifications with the same meaning: "none" for no
// answers. Invalid text is returned unchanged.
std::string CanonicalAnswers(std::string_view specification);

// Parses a specification; empty or "none" means no answers. InvalidArgument says which
// part is wrong, and what is allowed.
absl::StatusOr<AnswerSpec> ParseAnswers(std::string_view specification);

}  // namespace syncline
