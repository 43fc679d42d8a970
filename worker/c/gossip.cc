// Implements the gossip functions of syncline.h.
#include "comm/collective/gossip/gossip.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "worker/c/group.h"
#include "worker/c/handles.h"

using syncline::c::CheckProcess;
using syncline::c::FreeInItsProcess;
using syncline::c::Guarded;
using syncline::c::NullArgument;
using syncline::collective::Gossip;
using syncline::collective::GossipOptions;

struct syncline_gossip {
  std::shared_ptr<syncline::collective::Group> group;
  pid_t process;
  std::unique_ptr<Gossip> gossip;
  size_t count;
};

namespace {

absl::StatusOr<GossipOptions> Checked(const syncline_gossip_options* options) {
  if (options == nullptr) return NullArgument("options");
  if (options->struct_size < sizeof(syncline_gossip_options)) {
    return absl::InvalidArgumentError(
        "struct_size of syncline_gossip_options is too small: set it to its sizeof");
  }
  if (options->graph == nullptr) return NullArgument("graph");
  if (options->codec == nullptr) return NullArgument("codec");
  GossipOptions checked = {.codec = options->codec,
                           .elements = options->count,
                           .gamma = options->gamma,
                           .seed = options->seed};
  SYNCLINE_ASSIGN_OR_RETURN(checked.graph,
                            syncline::collective::ParseGossipGraph(options->graph));
  SYNCLINE_ASSIGN_OR_RETURN(const double usual, Gossip::DefaultGamma(checked.codec));
  if (checked.gamma == 0) checked.gamma = usual;
  SYNCLINE_RETURN_IF_ERROR(Gossip::Check(checked.codec, checked.gamma));
  if (options->base != nullptr) checked.base = {options->base, options->count};
  return checked;
}

}  // namespace

syncline_code syncline_gossip_check(const syncline_gossip_options* options,
                                    double* gamma) {
  return Guarded([&]() -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const GossipOptions checked, Checked(options));
    if (gamma != nullptr) *gamma = checked.gamma;
    return absl::OkStatus();
  });
}

syncline_code syncline_gossip_create(syncline_group* group,
                                     const syncline_gossip_options* options,
                                     syncline_gossip** out) {
  return Guarded([&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(group));
    SYNCLINE_ASSIGN_OR_RETURN(GossipOptions checked, Checked(options));
    checked.group = group->group.get();
    SYNCLINE_ASSIGN_OR_RETURN(auto made, Gossip::Create(checked));
    *out = new syncline_gossip{group->group, group->process, std::move(made),
                               options->count};
    return absl::OkStatus();
  });
}

syncline_code syncline_gossip_exchange(syncline_gossip* gossip, uint64_t round,
                                       const float* values, float* delta, size_t count,
                                       int* partner) {
  return Guarded([&]() -> absl::Status {
    if (gossip == nullptr) return NullArgument("gossip");
    if (values == nullptr && count > 0) return NullArgument("values");
    if (delta == nullptr && count > 0) return NullArgument("delta");
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(gossip->process));
    SYNCLINE_ASSIGN_OR_RETURN(
        const std::optional<int> met,
        gossip->gossip->Exchange(round, {values, count}, {delta, count}));
    if (partner != nullptr) *partner = met.value_or(-1);
    return absl::OkStatus();
  });
}

syncline_code syncline_gossip_distance(syncline_gossip* gossip, const float* values,
                                       size_t count, double* distance) {
  return Guarded([&]() -> absl::Status {
    if (gossip == nullptr) return NullArgument("gossip");
    if (values == nullptr && count > 0) return NullArgument("values");
    if (distance == nullptr) return NullArgument("distance");
    if (count != gossip->count) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the gossip was made for ", gossip->count, " values, but was given ", count));
    }
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(gossip->process));
    SYNCLINE_ASSIGN_OR_RETURN(*distance, gossip->gossip->Distance({values, count}));
    return absl::OkStatus();
  });
}

uint64_t syncline_gossip_sent_bytes(const syncline_gossip* gossip) {
  return gossip == nullptr ? 0 : gossip->gossip->sent_bytes();
}

uint64_t syncline_gossip_kept_bytes(const syncline_gossip* gossip) {
  return gossip == nullptr ? 0 : gossip->gossip->kept_bytes();
}

void syncline_gossip_free(syncline_gossip* gossip) { FreeInItsProcess(gossip); }
