// The functions of the CUDA module that the client calls, found by name. They are
// documented in comm/codec/cuda/codecs.h, cast.h and memory.h.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "comm/codec/cuda/cast.h"
#include "comm/codec/cuda/codecs.h"
#include "comm/codec/cuda/memory.h"

namespace syncline {

struct DeviceCalls {
  decltype(&SynclineCudaTileStride) tile_stride = nullptr;
  decltype(&SynclineCudaWorkspaceBytes) workspace_bytes = nullptr;
  decltype(&SynclineCudaEncode) encode = nullptr;
  decltype(&SynclineCudaDecodeAdd) decode_add = nullptr;
  decltype(&SynclineCudaErrorString) error_string = nullptr;
  decltype(&SynclineCudaBf16FromFloat) bf16_from_float = nullptr;
  decltype(&SynclineCudaFloatFromBf16) float_from_bf16 = nullptr;
  decltype(&SynclineCudaUseDevice) use_device = nullptr;
  decltype(&SynclineCudaStreamCreate) stream_create = nullptr;
  decltype(&SynclineCudaStreamDestroy) stream_destroy = nullptr;
  decltype(&SynclineCudaStreamWait) stream_wait = nullptr;
  decltype(&SynclineCudaStreamHandle) stream_handle = nullptr;
  decltype(&SynclineCudaAllocate) allocate = nullptr;
  decltype(&SynclineCudaFree) free = nullptr;
  decltype(&SynclineCudaAllocateHost) allocate_host = nullptr;
  decltype(&SynclineCudaFreeHost) free_host = nullptr;
  decltype(&SynclineCudaCopy) copy = nullptr;
  decltype(&SynclineCudaClear) clear = nullptr;
};

// Finds the functions of an open module (CudaProbe::module). Fails with
// FailedPrecondition, which names a missing function.
absl::StatusOr<DeviceCalls> FindDeviceCalls(void* module);

}  // namespace syncline
