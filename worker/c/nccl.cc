// Implements the groups over NCCL of syncline.h.
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/collective/nccl/nccl_group.h"
#include "worker/c/group.h"
#include "worker/c/handles.h"

using syncline::c::CallOf;
using syncline::c::CheckProcess;
using syncline::c::Guarded;
using syncline::c::HandleOf;
using syncline::c::NullArgument;
using syncline::collective::NcclGroup;

struct syncline_nccl_group {
  std::unique_ptr<NcclGroup> group;
  int ranks;
  pid_t process = getpid();
};

namespace {

absl::Status CheckNccl(const syncline_nccl_group* nccl) {
  return nccl == nullptr ? NullArgument("nccl") : CheckProcess(nccl->process);
}

}  // namespace

syncline_code syncline_nccl_create(syncline_group* group,
                                   const syncline_nccl_options* options,
                                   syncline_nccl_group** out) {
  return Guarded([&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(group));
    if (options == nullptr) return NullArgument("options");
    if (options->struct_size < sizeof(syncline_nccl_options)) {
      return absl::InvalidArgumentError(
          absl::StrCat("struct_size of a syncline_nccl_options is ", options->struct_size,
                       ", but must be its sizeof"));
    }
    const uint64_t device = options->device;
    if (device == 0 || device > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device is ", device, ", but must be 1 + the number of a CUDA device"));
    }
    SYNCLINE_ASSIGN_OR_RETURN(const auto given, syncline::c::GroupOf(options->group));
    const int ranks = group->group->ranks();
    if (given.options.rank != group->group->rank() || given.options.ranks != ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a group over NCCL of rank ", given.options.rank, " of ", given.options.ranks,
          ", but the group is of rank ", group->group->rank(), " of ", ranks));
    }
    const char* const why_not = options->why_not;
    SYNCLINE_ASSIGN_OR_RETURN(
        auto made, NcclGroup::Create({.group = given.options,
                                      .device = static_cast<int>(device) - 1,
                                      .why_not = why_not != nullptr ? why_not : ""},
                                     *group->group));
    *out = new syncline_nccl_group{std::move(made), ranks};
    return absl::OkStatus();
  });
}

void syncline_nccl_free(syncline_nccl_group* nccl) {
  if (!CheckNccl(nccl).ok()) return;
  Guarded([&] {
    delete nccl;
    return absl::OkStatus();
  });
}

syncline_code syncline_nccl_start(syncline_nccl_group* nccl, const syncline_call* call,
                                  void* stream, syncline_handle** out) {
  return Guarded([&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_RETURN_IF_ERROR(CheckNccl(nccl));
    SYNCLINE_ASSIGN_OR_RETURN(auto known, CallOf(nccl->ranks, call));
    SYNCLINE_ASSIGN_OR_RETURN(auto handle, nccl->group->Start(std::move(known), stream));
    *out = new HandleOf<NcclGroup>(*nccl->group, std::move(handle));
    return absl::OkStatus();
  });
}

void syncline_nccl_leave(syncline_nccl_group* nccl) {
  Guarded([&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckNccl(nccl));
    nccl->group->Leave();
    return absl::OkStatus();
  });
}

void syncline_nccl_abort(syncline_nccl_group* nccl) {
  Guarded([&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckNccl(nccl));
    nccl->group->Abort();
    return absl::OkStatus();
  });
}
