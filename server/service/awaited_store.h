// A store of checkpoints that may be unreachable, at the start or later: for instance a
// bucket whose server is down. A thread tries to open the store until that works. Calls
// made before wait for up to `patience`, and then fail. If a later call fails with
// Unavailable, the store counts as unreachable until the thread has opened it again.
// Other calls then need not run into the same time-out.
//
//   AwaitedStore store({.open = [] { return OpenS3Store(settings, options); },
//                       .on_change = [](const absl::Status& status) { ... }});
//   store.AwaitFirst(absl::Seconds(10), [] { return false; });
//   store.List("night");  // as the store's own List
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
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
#include "server/checkpoint/blob_store.h"

namespace syncline {

struct AwaitedStoreOptions {
  std::string where = {};  // name for people
  // Opens the store. Must return in bounded time. Fails with Unavailable if the store is
  // unreachable. An operator must correct all other errors, but even then opening is
  // tried again.
  std::function<absl::StatusOr<std::unique_ptr<BlobStore>>()> open = {};
  // Called on a thread of the store whenever the status code of opening changes: OK means
  // that it is open.
  std::function<void(const absl::Status&)> on_change = {};
  // When this is requested, because the process is to end, the store closes.
  std::stop_token ends = {};
  // How long a call waits while the store is unreachable.
  absl::Duration patience = absl::ZeroDuration();
  // The first pause between two attempts to open. Each further pause is twice as long, up
  // to the longest.
  absl::Duration first_pause = absl::Seconds(1);
  absl::Duration longest_pause = absl::Seconds(30);
};

class AwaitedStore final : public BlobStore {
 public:
  explicit AwaitedStore(AwaitedStoreOptions options);
  ~AwaitedStore() override;  // closes

  // Waits for the first attempt to open, and returns its status. Returns nothing if it
  // takes longer than `limit`, or once `gives_up` returns true.
  std::optional<absl::Status> AwaitFirst(absl::Duration limit,
                                         const std::function<bool()>& gives_up)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes all waiting calls fail. The thread ends after the attempt that is under way.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<std::vector<Blob>> List(const std::string& folder) override;
  absl::Status Read(const std::string& name, uint64_t offset,
                    MutableByteView out) override;
  absl::StatusOr<std::unique_ptr<BlobWriter>> Create(const std::string& name,
                                                     size_t head_bytes) override;
  absl::Status Claim(const std::string& name) override;
  absl::Status Delete(const std::string& name) override;
  std::string Describe() const override { return options_.where; }

 private:
  class NotedWriter;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false if the store closes.
  bool Pause(absl::Duration pause) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<BlobStore*> Opened() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns `status`, after noting that the store is unreachable if it says so.
  absl::Status Noted(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  const AwaitedStoreOptions options_;
  const SteadyClock clock_;
  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  // Status of the last attempt to open, or of a call that failed later.
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  // The first one that was opened.
  std::unique_ptr<BlobStore> store_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;                                      // uses all the others
  const std::stop_callback<std::function<void()>> on_end_;  // uses all the others
};

}  // namespace syncline
