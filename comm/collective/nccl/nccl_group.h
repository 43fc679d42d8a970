// A group of ranks whose collective operations run over NCCL, on tensors in GPU memory.
// It has the interface of a Group (comm/collective/group) and works beside one. Through
// that Group the members meet. Through another one they learn which members live and what
// each has called, because NCCL by itself hangs when a rank dies or calls something else.
// In that case all operations in progress are aborted on all members, within the failure
// timeout, with an error that names the rank (FailedRank). The group is then unusable:
// create another one.
//
//   auto nccl = NcclGroup::Create({.group = {.name = "gpus", ...}, .device = 0}, *group);
//   auto handle = (*nccl)->Start({.output = gradient, .count = n}, stream);
//   absl::Status status = (*nccl)->Wait(*handle, absl::InfiniteDuration());
//
// Thread safety: any thread may start and wait. A thread of the group makes all calls to
// NCCL.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/steady_condition.h"
#include "comm/collective/group/group.h"
#include "comm/collective/nccl/gpu.h"
#include "comm/collective/nccl/nccl_communicator.h"
#include "comm/collective/nccl/nccl_library.h"
#include "comm/collective/nccl/roll_call.h"

namespace syncline::collective {

struct NcclGroupOptions {
  GroupOptions group;        // name (used by no other group), place, store and times
  int device = 0;            // number of a CUDA device, as this process sees them
  std::string why_not = {};  // not empty: this rank wants no group, so none is formed
  std::string library = NcclLibrary::Default();
  std::string driver = Gpu::Driver();
};

// An operation from its call to its completion.
struct PendingNcclCall {
  Call call;
  CallHeader header;  // sequence 0: between two ranks
  absl::Duration deadline;
  GpuEvent behind;      // on the program's stream
  GpuEvent over;        // on NCCL's stream, once launched
  absl::Status status;  // valid once done
  std::atomic<bool> done = false;
};

class NcclGroup {
 public:
  using Handle = std::shared_ptr<PendingNcclCall>;

  // Blocks until all members of `group` have made the same call, in the order of its
  // operations. Fails with Unimplemented on all members if they cannot form such a group;
  // the message says why, and `group` stays usable. Other errors name a rank that is gone
  // or late.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Create(
      const NcclGroupOptions& options, Group& group);
  // Leaves, unless Leave was called.
  ~NcclGroup();

  // Starts an operation and returns at once. The operation begins when `stream`, a
  // CUstream of the device, reaches this point. The call's memory must be on the device,
  // and is in use until the operation is done; for a barrier the group supplies it.
  // Operations run in the order of Start, including those between two ranks. On an error
  // nothing was started.
  absl::StatusOr<Handle> Start(Call call, void* stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for the operation. The result is then visible to every stream.
  // DeadlineExceeded: it is still running.
  absl::Status Wait(const Handle& handle, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsDone(const Handle& handle) const { return handle->done; }

  // Waits F/8 for operations in progress, and ends the group. Operations that are still
  // in progress then end with Cancelled, also on the other members.
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all operations in progress with Cancelled, here and on all members.
  void Abort() ABSL_LOCKS_EXCLUDED(mutex_);
  // OK while the group is usable.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  NcclGroup(const NcclGroupOptions& options, std::unique_ptr<Gpu> gpu,
            std::unique_ptr<NcclCommunicator> communicator, std::unique_ptr<Group> watch);
  absl::Status AwaitFormed() ABSL_LOCKS_EXCLUDED(mutex_);

  // Functions of the group's thread.
  void Work(const NcclUniqueId& id) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Step() ABSL_LOCKS_EXCLUDED(mutex_);
  bool TakeCalls() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TendRollCall(absl::Duration now) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AwaitVerdict(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status EndWhatPassed() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LaunchWhatCan() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckDeadlines(absl::Duration now) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TooLate(const PendingNcclCall& pending) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WhyEnd(absl::Duration now) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndInPeace() ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitStream() ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Complete(PendingNcclCall& pending, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Sleep(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsBusy() const;
  absl::Duration Pause() const;

  const NcclGroupOptions options_;
  const NcclRank place_;
  const SteadyClock clock_;
  const std::unique_ptr<Gpu> gpu_;
  const std::unique_ptr<NcclCommunicator> communicator_;
  const std::unique_ptr<Group> watch_;

  // Used only by the thread.
  std::deque<Handle> calls_;  // not launched yet
  Handle launching_;          // being enqueued by NCCL
  std::deque<Handle> under_way_;
  bool is_formed_ = false;
  bool has_left_ = false;
  absl::Duration moved_ = absl::ZeroDuration();  // time of the last progress
  absl::Duration grace_ = absl::ZeroDuration();  // for operations to end after a failure
  Group::Handle round_;                          // of the roll call
  absl::Duration next_round_ = absl::ZeroDuration();
  RollCallRecord record_;
  std::vector<RollCallRecord> records_;

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  RollCall roll_call_ ABSL_GUARDED_BY(mutex_);
  std::deque<Handle> incoming_ ABSL_GUARDED_BY(mutex_);
  bool formed_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration leave_by_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the thread has ended
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace syncline::collective
