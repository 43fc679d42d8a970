// Owns one UCX context and its one worker: single-threaded, with a wake-up descriptor,
// set up so that shared memory is chosen although errors must be reported. One context
// per worker, because workers that share one also share the lock of its registration
// cache.
//
// Thread safety: one thread, but Signal().
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/ucx/ucx.h"

namespace syncline {

absl::Status StatusFromUcx(ucs_status_t status, absl::string_view what);

class UcxWorker {
 public:
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const UcxOptions& options);
  ~UcxWorker();

  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h handle() const { return worker_; }

  // Readable when something may have arrived, provided that Arm() said so.
  int event_fd() const { return event_fd_; }
  enum class Armed { kYes, kEventsPending };
  Armed Arm();

  absl::StatusOr<std::string> Address() const;

 private:
  UcxWorker() = default;
  absl::Status Open(const UcxOptions& options);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
};

}  // namespace syncline
