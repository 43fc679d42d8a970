// One rank's NCCL communicator, and the stream on which its operations run. It is
// non-blocking: no call waits for another rank, so it can be aborted when a rank is gone.
//
// Thread safety: none, except for barrier_byte(). One thread must make all calls, with
// the GPU as its current device.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/collective/nccl/gpu.h"
#include "comm/collective/nccl/nccl_call.h"

namespace syncline::collective {

class NcclCommunicator {
 public:
  // `gpu` must outlive it.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Make(const NcclLibrary& nccl,
                                                                const NcclRank& place,
                                                                Gpu& gpu);
  // Aborts everything that is not finished.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Starts to connect to the others. The communicator is ready when all have joined.
  absl::Status Begin(const NcclUniqueId& id);
  // Enqueues the call after `behind`. REQUIRES: ready; CheckNcclCall returned OK.
  absl::Status Launch(const Call& call, const GpuEvent& behind);
  // Whether NCCL has finished its last begin, launch or finalize. The next call must wait
  // for that. Fails with Unavailable if an error has occurred meanwhile.
  absl::StatusOr<bool> IsReady();
  // Whether another rank that is gone may have caused the error.
  bool MayBeAnother() const { return may_be_another_; }

  // Starts an orderly end. REQUIRES: ready, no operation in progress.
  absl::Status Finalize();
  // REQUIRES: ready after Finalize.
  void Destroy();
  // Ends all operations in progress, in any state.
  void Abort();

  void* stream() const { return stream_; }
  // Device memory that barriers reduce.
  void* barrier_byte() const { return barrier_byte_; }

 private:
  NcclCommunicator(const NcclLibrary& nccl, const NcclRank& place, Gpu& gpu)
      : nccl_(nccl), place_(place), gpu_(gpu) {}
  absl::Status Check(int result, absl::string_view what);

  const NcclLibrary nccl_;
  const NcclRank place_;
  Gpu& gpu_;
  void* stream_ = nullptr;
  void* barrier_byte_ = nullptr;
  void* comm_ = nullptr;
  bool may_be_another_ = false;
};

}  // namespace syncline::collective
