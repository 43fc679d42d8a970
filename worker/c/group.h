// What syncline_group and its handles contain, and conversions of the C structs of groups
// and calls to those of C++.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collective/group/group.h"
#include "worker/c/handles.h"
#include "worker/c/syncline.h"

struct syncline_group {
  // Shared with the objects that use the group, so that the group may be freed before
  // them.
  std::shared_ptr<syncline::collective::Group> group;
  std::string costs;  // described
  pid_t process = getpid();
};

struct syncline_handle {
  virtual ~syncline_handle() = default;
  virtual absl::Status Wait(absl::Duration timeout) = 0;
  virtual bool IsDone() const = 0;

  const pid_t process = getpid();
};

namespace syncline::c {

// Fails with InvalidArgument if `group` is null, and with FailedPrecondition in another
// process than the one that made it.
absl::Status CheckProcess(const syncline_group* group);
absl::Status CheckProcess(pid_t made_by);

// Converts a call. The group checks the values, because it knows what is allowed.
absl::StatusOr<collective::Call> CallOf(int ranks, const syncline_call* given);

// Deletes an object that uses a group. Does nothing in a child of the process that made
// it: the group's threads do not exist there.
template <typename Owner>
void FreeInItsProcess(Owner* owner) {
  if (owner == nullptr || !CheckProcess(owner->process).ok()) return;
  Guarded([&] {
    delete owner;
    return absl::OkStatus();
  });
}

struct GivenGroup {
  std::unique_ptr<collective::Store> store;  // that `options` refers to
  collective::GroupOptions options;
};
absl::StatusOr<GivenGroup> GroupOf(const syncline_group_options* given);

// An operation of a Group, or of a class with the same functions.
template <typename Operations>
struct HandleOf final : syncline_handle {
  HandleOf(Operations& made_by, typename Operations::Handle given)
      : group(made_by), handle(std::move(given)) {}
  absl::Status Wait(absl::Duration timeout) override {
    return group.Wait(handle, timeout);
  }
  bool IsDone() const override { return group.IsDone(handle); }

  Operations& group;
  const typename Operations::Handle handle;
};

}  // namespace syncline::c
