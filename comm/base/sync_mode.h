// How the steps of a job's workers are synchronized (docs/modes.md). Both workers and
// servers know it. Text forms:
//
//   bsp                        each step has a contribution of every worker
//   bsp:quorum=3,grace_ms=200  at least 3 contributions; more count if within 200 ms
//   bsp:whole=1                all contributions; of a worker that dies, those that are
//                              complete everywhere
//   ssp:staleness=3            like bsp, but a worker may lead the slowest by 3 steps;
//                              short form ssp:3
//   asp:age_power=1            each contribution is a step of its own, when it arrives
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/options.h"

namespace syncline {

// Upper limit: nothing is known about convergence on older weights.
inline constexpr uint64_t kMaxStaleness = 64;
// Upper limit: a longer wait amounts to waiting for all workers.
inline constexpr uint64_t kMaxGraceMs = 60'000;

struct SyncMode {
  enum class Kind { kBsp, kSsp, kAsp };

  Kind kind = Kind::kBsp;
  uint64_t staleness = 0;  // steps by which a worker may lead the slowest; bsp: 0
  // bsp: minimum number of contributions to a step; those that arrive within the grace
  // time after them count, too. 0: those of all workers.
  uint64_t quorum = 0;
  // bsp: the complete contributions of all workers, however many these are; `quorum` is
  // then kMaxWorkers.
  bool is_whole = false;
  uint64_t grace_ms = 0;
  // asp: weight of a contribution computed on weights that are `age` versions old,
  // relative to a fresh one: age_decay^age / (1 + age)^age_power. With a limit it is also
  // multiplied by (1 + cos(pi age / age_limit)) / 2, which is 0 from the limit on (CGAD,
  // arXiv 2605.09126).
  double age_power = 0;
  double age_decay = 1;
  double age_limit = 0;  // 0: none
  // asp: strength of delay compensation (server/optimizer/transforms.h); 0: none.
  double compensation = 0;
  // asp: workers see the weights minus this factor times the momentum; 0: the weights.
  float view_ahead = 0;

  bool is_async() const { return kind == Kind::kAsp; }
  // Returns true if a worker may compute on outdated weights, whose age is counted.
  bool has_delays() const { return is_async() || staleness > 0; }
  bool has_quorum() const { return quorum > 0; }
  // Returns true if each step has contributions of all workers, and its weights reach all
  // of them before the next step's contributions. False for ssp, whose staleness may
  // change.
  bool is_lockstep() const { return kind == Kind::kBsp && !has_quorum(); }
  // Returns true if some versions never reach every worker.
  bool skips_versions() const { return has_delays() || has_quorum(); }
  double WeightOfAge(uint64_t age) const;
  bool WeighsByAge() const { return age_power != 0 || age_decay != 1 || age_limit != 0; }

  bool operator==(const SyncMode&) const = default;
};

// Returns "bsp", "ssp" and "asp".
std::span<const std::string_view> SyncModeNames();
// Returns the options of a mode; empty for unknown names.
std::span<const OptionSpec> SyncModeOptionsOf(std::string_view name);
// Parses the text of a mode. A number alone is the staleness: "ssp:3". InvalidArgument
// names the part that is malformed. ParseSyncMode checks that the mode and its options
// exist.
absl::StatusOr<NamedOptions> ParseModeText(std::string_view text);
// Checks a choice; an empty name means bsp. InvalidArgument names the mode or option, its
// value and what is allowed.
absl::StatusOr<SyncMode> ParseSyncMode(const NamedOptions& mode);
// Checks a mode for a job whose members are hosts with several ranks each
// (docs/pytorch.md): it must have the same steps for all ranks of a host, and must not
// leave a host out. InvalidArgument names the mode and the allowed ones.
absl::Status CheckLocalAggregation(const NamedOptions& mode);

}  // namespace syncline
