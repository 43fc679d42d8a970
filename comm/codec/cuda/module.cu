// What the module says of itself; the product asks before it uses anything else.
#include "comm/base/cuda/module_abi.h"

extern "C" void SynclineCudaDescribe(SynclineCudaInfo* info) {
  *info = SynclineCudaInfo{};
  info->abi = kSynclineCudaAbi;
  info->architectures = SYNCLINE_CUDA_ARCHITECTURES;
  info->message = "";
  cudaRuntimeGetVersion(&info->runtime_version);
  cudaDriverGetVersion(&info->driver_version);
  const cudaError_t error = cudaGetDeviceCount(&info->device_count);
  if (error != cudaSuccess) {
    info->device_count = 0;
    info->message = cudaGetErrorString(error);
  }
}
