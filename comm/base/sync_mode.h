// How the steps of a job's workers follow each other (docs/modes.md). Known to workers and
// servers alike, and written as other choices are:
//
//   bsp                    everybody contributes to a step before it is made
//   bsp:quorum=3,grace_ms=200  at least so many; the others have so long after these
//   bsp:whole=1            everybody's; of those who die in it, what is whole everywhere
//   ssp:staleness=3        the same steps, but a worker may be so many ahead of the slowest;
//                          in short ssp:3
//   asp:age_power=1        each contribution is a step of its own, when it arrives
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/options.h"

namespace syncline {

// A worker that is further ahead computes on weights of which nothing is known to be good.
inline constexpr uint64_t kMaxStaleness = 64;
// Longer than that, waiting for everybody is what is meant.
inline constexpr uint64_t kMaxGraceMs = 60'000;

struct SyncMode {
  enum class Kind { kBsp, kSsp, kAsp };

  Kind kind = Kind::kBsp;
  uint64_t staleness = 0;  // steps that a worker may be ahead of the slowest; bsp: 0
  // bsp: a step is made of so many contributions or more, and of those that come within the
  // grace time after them; 0: of everybody's.
  uint64_t quorum = 0;
  // Of everybody's, each whole, however many there are: `quorum` is kMaxWorkers then.
  bool is_whole = false;
  uint64_t grace_ms = 0;
  // asp: what a contribution whose weights were `age` versions old counts, over a fresh one:
  // age_decay^age / (1 + age)^age_power, and with a limit times
  // (1 + cos(pi age / age_limit)) / 2, which is 0 from the limit on (CGAD, arXiv 2605.09126).
  double age_power = 0;
  double age_decay = 1;
  double age_limit = 0;  // 0: none
  // asp: strength of delay compensation (server/optimizer/transforms.h); 0: none.
  double compensation = 0;

  bool is_async() const { return kind == Kind::kAsp; }
  // Whether a worker may compute on weights that others have moved on from, and have that
  // counted.
  bool has_delays() const { return is_async() || staleness > 0; }
  bool has_quorum() const { return quorum > 0; }
  // Whether each step is of everybody's contributions, and its weights reach everybody before
  // the next one is contributed to. Not of ssp, whose staleness may change.
  bool is_lockstep() const { return kind == Kind::kBsp && !has_quorum(); }
  // Whether some versions never reach every worker.
  bool skips_versions() const { return has_delays() || has_quorum(); }
  double WeightOfAge(uint64_t age) const;
  bool WeighsByAge() const { return age_power != 0 || age_decay != 1 || age_limit != 0; }

  bool operator==(const SyncMode&) const = default;
};

// "bsp", "ssp", "asp".
std::span<const std::string_view> SyncModeNames();
// Empty for unknown names.
std::span<const OptionSpec> SyncModeOptionsOf(std::string_view name);
// The choice that `text` names; a number alone is the staleness: "ssp:3". InvalidArgument
// names what is no option; whether the mode and its options exist ParseSyncMode says.
absl::StatusOr<NamedOptions> ParseModeText(std::string_view text);
// No name is bsp. InvalidArgument names the mode or option, its value and what is allowed.
absl::StatusOr<SyncMode> ParseSyncMode(const NamedOptions& mode);
// Of a job whose members are hosts, each with several ranks (docs/pytorch.md): its steps
// are the same for all ranks of a host, and leave no host out. InvalidArgument names the
// mode and those that there are.
absl::Status CheckLocalAggregation(const NamedOptions& mode);

}  // namespace syncline
