#include "server/coordinator/mode_change.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/base/sync_mode.h"
#include "comm/compression/residual_rate.h"

namespace syncline {
namespace {

absl::Status Refused(const JobSpec& spec, const NamedOptions& wanted,
                     absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("job '", spec.name, "' cannot change from mode '",
                   FormatNamedOptions(spec.training.mode), "' to '",
                   FormatNamedOptions(wanted), "': ", why));
}

// Returns why the kind of mode cannot change; empty: it can.
absl::string_view WhyKindsDiffer(const SyncMode& mode, const SyncMode& wanted) {
  if (mode.is_async() || wanted.is_async()) {
    return "in mode asp each contribution is a step of its own, so workers count their "
           "steps separately; begin a new job";
  }
  if (mode.has_quorum() || wanted.has_quorum()) {
    return "with a quorum workers skip steps, and must know that from the first step on; "
           "begin a new job";
  }
  if (mode.kind == SyncMode::Kind::kBsp && wanted.kind == SyncMode::Kind::kSsp) {
    return "a program that declares bsp may rely on no worker running ahead (LocalSGD, "
           "wrap and hook do); begin it with mode ssp:0, which makes the same steps and "
           "can change";
  }
  return "";
}

// Checks a change between waiting for all members and running ahead.
absl::Status CheckCrossing(const JobSpec& spec, const NamedOptions& wanted) {
  if (spec.IsJournaled()) {
    return Refused(
        spec, wanted,
        "with durability=disk a job without staleness continues when a server "
        "comes back, but a job with staleness does not, and its journals are for one of "
        "the two; stay at 0, or at 1 to 64");
  }
  if (!ResidualsFollowRate(spec.training.optimizer.name, spec.training.gradient)) {
    return absl::OkStatus();
  }
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<TensorTransfers> transfers,
                            spec.Transfers());
  for (const TensorTransfers& one : transfers) {
    const bool keeps = one.push.compresses() && one.push.memory.kind != MemoryKind::kNone;
    if (!keeps) continue;
    return Refused(spec, wanted,
                   absl::StrCat("what push_codec '", spec.settings.push_codec,
                                "' keeps of gradients follows the learning rate only "
                                "while no worker runs ahead; stay at 0, or at 1 to 64"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NamedOptions> ChangedMode(const JobSpec& spec,
                                         const NamedOptions& wanted) {
  SYNCLINE_ASSIGN_OR_RETURN(const SyncMode next, ParseSyncMode(wanted));
  const SyncMode mode = spec.training.sync();
  if (next == mode) return spec.training.mode;
  if (const auto why = WhyKindsDiffer(mode, next); !why.empty()) {
    return Refused(spec, wanted, why);
  }
  const bool crosses = (mode.staleness == 0) != (next.staleness == 0);
  if (crosses) SYNCLINE_RETURN_IF_ERROR(CheckCrossing(spec, wanted));
  JobSpec changed = spec;
  changed.training.mode = {
      .name = "ssp", .values = {{"staleness", static_cast<double>(next.staleness)}}};
  SYNCLINE_RETURN_IF_ERROR(ValidateJob(changed));
  return changed.training.mode;
}

MemoryUse UseAfter(MemoryUse use, const StalenessChange& change) {
  use.held = use.held / (1 + change.planned) * (1 + change.staleness);
  return use;
}

}  // namespace syncline
