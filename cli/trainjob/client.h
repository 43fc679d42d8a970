// Posts one message after the other over HTTPS, each within a time limit that holds
// whatever the peer does: it may not answer, or one byte at a time.
//
//   TrainJobClient client(target);
//   const absl::Status sent = client.Post(message, absl::Seconds(5));
//
// The token's file and the CA's file are read for each message.
//
// Thread safety: one thread posts; any thread may call Cut.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/trainjob/target.h"
#include "comm/base/env.h"

namespace syncline {

class TrainJobClient {
 public:
  explicit TrainJobClient(TrainJobTarget target) : target_(std::move(target)) {}
  ~TrainJobClient() { Cut(); }
  TrainJobClient(const TrainJobClient&) = delete;
  TrainJobClient& operator=(const TrainJobClient&) = delete;

  // Returns within `limit` and a little time to clean up. Errors say what the peer
  // answered, or why there is no answer, and what to do. `retry_after`, if not null, gets
  // the pause that the peer asks for, or zero.
  absl::Status Post(const std::string& message, absl::Duration limit,
                    absl::Duration* retry_after = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends a Post that is under way, and makes it and later ones fail with Cancelled.
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Attempt;

  const TrainJobTarget target_;
  const SteadyClock clock_;
  absl::Mutex mutex_;
  bool is_cut_ ABSL_GUARDED_BY(mutex_) = false;
  // The last one; its thread may outlive its Post, while it looks up a name.
  std::shared_ptr<Attempt> attempt_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
