#include "comm/device/device_calls.h"

#include <dlfcn.h>

#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace syncline {

absl::StatusOr<DeviceCalls> FindDeviceCalls(void* module) {
  DeviceCalls calls;
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        dlsym(module, name));
    if (function == nullptr) missing = name;
  };
  find(calls.tile_stride, "SynclineCudaTileStride");
  find(calls.workspace_bytes, "SynclineCudaWorkspaceBytes");
  find(calls.encode, "SynclineCudaEncode");
  find(calls.decode_add, "SynclineCudaDecodeAdd");
  find(calls.error_string, "SynclineCudaErrorString");
  find(calls.bf16_from_float, "SynclineCudaBf16FromFloat");
  find(calls.float_from_bf16, "SynclineCudaFloatFromBf16");
  find(calls.use_device, "SynclineCudaUseDevice");
  find(calls.stream_create, "SynclineCudaStreamCreate");
  find(calls.stream_destroy, "SynclineCudaStreamDestroy");
  find(calls.stream_wait, "SynclineCudaStreamWait");
  find(calls.stream_handle, "SynclineCudaStreamHandle");
  find(calls.allocate, "SynclineCudaAllocate");
  find(calls.free, "SynclineCudaFree");
  find(calls.allocate_host, "SynclineCudaAllocateHost");
  find(calls.free_host, "SynclineCudaFreeHost");
  find(calls.copy, "SynclineCudaCopy");
  find(calls.clear, "SynclineCudaClear");
  if (missing == nullptr) return calls;
  return absl::FailedPreconditionError(
      absl::StrCat("the CUDA module has no function ", missing,
                   ": install it and this program from one build"));
}

}  // namespace syncline
