// Owns a UCX context and its only worker, which is single-threaded and has a wake-up
// descriptor. It is set up so that UCX chooses shared memory although errors must be
// reported. Each worker has its own context, because workers of the same context share
// the lock of its registration cache.
//
// Thread safety: one thread.
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

  // The descriptor is readable when something may have arrived, provided that Arm()
  // returned kYes.
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
