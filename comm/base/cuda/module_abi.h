// What the product knows of libsyncline_cuda.so, the module with all CUDA code. It is
// opened at run time only, so that one binary serves machines with and without a GPU.
// Plain C types: the two sides may come from different compilers.
#pragma once

#include <cstdint>

// Raised with every change of an exported function; the loader refuses a module of
// another number.
inline constexpr uint32_t kSynclineCudaAbi = 1;

struct SynclineCudaInfo {
  uint32_t abi;               // kSynclineCudaAbi of the module.
  int32_t runtime_version;    // 13000 is CUDA 13.0.
  int32_t driver_version;     // The newest CUDA the driver knows; 0 without a driver.
  int32_t device_count;       // 0 when `message` says why.
  const char* architectures;  // "sm_80 sm_90 ptx_90"; static storage.
  const char* message;        // Empty when devices are usable; static storage.
};

extern "C" {
// Fills `info` without making a CUDA context: cheap, and safe before fork.
void SynclineCudaDescribe(SynclineCudaInfo* info);
using SynclineCudaDescribeFn = void(SynclineCudaInfo*);
}
