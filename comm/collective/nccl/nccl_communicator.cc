#include "comm/collective/nccl/nccl_communicator.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"

namespace syncline::collective {
namespace {

// ncclSystemError and ncclRemoteError, which NCCL returns for a lost connection.
constexpr int kSystemError = 2;
constexpr int kRemoteError = 6;

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Make(
    const NcclLibrary& nccl, const NcclRank& place, Gpu& gpu) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(nccl, place, gpu));
  SYNCLINE_ASSIGN_OR_RETURN(made->stream_, gpu.MakeStream());
  SYNCLINE_ASSIGN_OR_RETURN(made->barrier_byte_, gpu.Allocate(1));
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  const Gpu::Current current(gpu_);
  Abort();
  gpu_.Free(barrier_byte_);
  gpu_.DestroyStream(stream_);
}

absl::Status NcclCommunicator::Check(int result, absl::string_view what) {
  if (result == kNcclSuccess || result == kNcclInProgress) return absl::OkStatus();
  may_be_another_ = result == kSystemError || result == kRemoteError;
  const char* const more = nccl_.get_last_error(comm_);
  absl::Status status =
      WithFailure(absl::UnavailableError(absl::StrCat(
                      "NCCL failed on rank ", place_.rank, " (", what,
                      "): ", nccl_.get_error_string(result),
                      more != nullptr && *more != 0 ? absl::StrCat(": ", more) : "",
                      "; NCCL_DEBUG=WARN prints more")),
                  Failure::kDeviceFailed);
  SetFailedRank(status, place_.rank);
  return status;
}

absl::Status NcclCommunicator::Begin(const NcclUniqueId& id) {
  NcclConfig config;
  return Check(nccl_.comm_init(&comm_, place_.ranks, id, place_.rank, &config),
               "ncclCommInitRankConfig");
}

absl::Status NcclCommunicator::Launch(const Call& call, const GpuEvent& behind) {
  SYNCLINE_RETURN_IF_ERROR(behind.HoldUp(stream_));
  const NcclTarget target = {
      .nccl = nccl_, .comm = comm_, .stream = stream_, .place = place_};
  return Check(LaunchNcclCall(target, call), CollectiveName(call.op).data());
}

absl::StatusOr<bool> NcclCommunicator::IsReady() {
  int state = kNcclSuccess;
  SYNCLINE_RETURN_IF_ERROR(
      Check(nccl_.comm_get_async_error(comm_, &state), "ncclCommGetAsyncError"));
  SYNCLINE_RETURN_IF_ERROR(Check(state, "asynchronously"));
  return state == kNcclSuccess;
}

absl::Status NcclCommunicator::Finalize() {
  return Check(nccl_.comm_finalize(comm_), "ncclCommFinalize");
}

void NcclCommunicator::Destroy() {
  if (comm_ != nullptr) nccl_.comm_destroy(comm_);
  comm_ = nullptr;
}

void NcclCommunicator::Abort() {
  if (comm_ != nullptr) nccl_.comm_abort(comm_);
  comm_ = nullptr;
}

}  // namespace syncline::collective
