// What is behind a syncline_group, for those who work on one.
#pragma once

#include <unistd.h>

#include <memory>

#include "absl/status/status.h"
#include "comm/collective/group/group.h"
#include "worker/c/syncline.h"

struct syncline_group {
  std::unique_ptr<syncline::collective::Group> group;
  pid_t process = getpid();
};

namespace syncline::c {

// InvalidArgument without a group; FailedPrecondition in a child of the process that made it.
absl::Status CheckProcess(const syncline_group* group);

}  // namespace syncline::c
