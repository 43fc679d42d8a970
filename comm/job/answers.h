// What the coordinator may do by itself when a job misses its goals (docs/goals.md), as
// people write it:
//
//   exclude_straggler,staleness<=8,factor=2,after_s=60,pause_s=300,per_hour=2,min_workers=3
//
// Nothing unless it is said.
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
  kExcludeStraggler,  // a worker that others wait for is no member any more
  kStaleness,         // of mode ssp: workers may be further ahead
};
inline constexpr size_t kAnswerKinds = 2;
inline constexpr size_t kMaxAnswersBytes = 256;

// "exclude_straggler" and so on: what specifications, JSON and labels of metrics have.
std::string_view AnswerName(AnswerKind kind);

struct AnswerSpec {
  bool excludes = false;
  uint32_t staleness = 0;  // the largest that may be; 0: it stays as it is

  // A straggler takes so many times as long for its own part of a step as the next slowest.
  double factor = 2;
  absl::Duration after = absl::Minutes(1);  // that it has been one
  absl::Duration pause = absl::Minutes(5);  // from one answer to the next
  uint32_t per_hour = 2;                    // exclusions
  uint32_t min_workers = 0;                 // that stay; 0: half of the job's

  bool empty() const { return !excludes && staleness == 0; }
  // Of a job that was declared for so many.
  uint32_t LeastWorkers(uint32_t workers) const {
    return min_workers > 0 ? min_workers : (workers + 1) / 2;
  }
};

// The same of all specifications that mean the same: "none" of no answers, and of what cannot
// be read itself.
std::string CanonicalAnswers(std::string_view specification);

// Of an empty specification, or "none", no answers. InvalidArgument says which part is wrong,
// and what is allowed.
absl::StatusOr<AnswerSpec> ParseAnswers(std::string_view specification);

}  // namespace syncline
