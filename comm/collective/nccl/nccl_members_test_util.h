// Helpers that create the members of a test's group over the stand-in for NCCL. Tests
// only.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/collective/group/members_test_util.h"
#include "comm/collective/nccl/nccl_group.h"

namespace syncline::collective {

inline NcclGroupOptions OnStandIn(const GroupOptions& group, int device) {
  GroupOptions own = group;
  own.name += "/nccl";
  return {.group = own,
          .device = device,
          .library = SYNCLINE_TEST_FAKE_GPU,
          .driver = SYNCLINE_TEST_FAKE_GPU};
}

struct NcclMembers {
  int ranks = 2;
  absl::Duration failure_timeout = absl::Seconds(10);
  absl::Duration start_timeout = absl::Minutes(5);
  // Changes a rank's options before it creates its group.
  std::function<void(int rank, NcclGroupOptions& options)> change =
      [](int, NcclGroupOptions&) {};
};

// Runs all ranks as threads, each with its own GPU. Returns the result of each rank's
// body.
inline std::vector<absl::Status> RunOnNccl(
    const NcclMembers& members,
    const std::function<absl::Status(NcclGroup&, int rank)>& body) {
  MemoryStore store;
  std::vector<absl::Status> statuses(static_cast<size_t>(members.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < members.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      absl::Status& status = statuses[static_cast<size_t>(rank)];
      GroupOptions options =
          Members{.ranks = members.ranks}.Options("test", rank, &store);
      options.failure_timeout = members.failure_timeout;
      options.start_timeout = members.start_timeout;
      const auto group = Group::Create(options);
      if (!group.ok()) {
        status = group.status();
        return;
      }
      NcclGroupOptions over_nccl = OnStandIn(options, rank);
      members.change(rank, over_nccl);
      const auto nccl = NcclGroup::Create(over_nccl, **group);
      status = nccl.ok() ? body(**nccl, rank) : nccl.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

inline absl::Status RunCall(NcclGroup& group, const Call& call, void* stream = nullptr) {
  const auto handle = group.Start(call, stream);
  if (!handle.ok()) return handle.status();
  return group.Wait(*handle, absl::InfiniteDuration());
}

// Sets an environment variable while this object exists.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* const name_;
};

}  // namespace syncline::collective
