// The module's description of itself, which the product reads before it uses anything
// else.
#include <algorithm>
#include <cstring>

#include "comm/base/cuda/module_abi.h"

extern "C" void SynclineCudaDescribe(SynclineCudaInfo* info) {
  SynclineCudaInfo mine = {.abi = kSynclineCudaAbi,
                           .struct_bytes = sizeof(SynclineCudaInfo),
                           .runtime_version = 0,
                           .driver_version = 0,
                           .device_count = 0,
                           .architectures = SYNCLINE_CUDA_ARCHITECTURES,
                           .message = ""};
  cudaRuntimeGetVersion(&mine.runtime_version);
  cudaDriverGetVersion(&mine.driver_version);
  const cudaError_t error = cudaGetDeviceCount(&mine.device_count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    mine.device_count = 0;
    mine.message = cudaGetErrorString(error);
  }
  std::memcpy(info, &mine, std::min<size_t>(info->struct_bytes, sizeof(mine)));
}
