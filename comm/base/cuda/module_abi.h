// What the product knows of libsyncline_cuda.so, the module with all CUDA code. It is
// opened at run time only, so that one binary serves machines with and without a GPU.
// Plain C types: the two sides may come from different compilers.
#pragma once

#include <cstdint>

// Raised with every change of an exported function or of a struct that it takes (codecs.h,
// cast.h, memory.h); the loader refuses a module of another number. Such structs begin with their
// own size, so that a caller who was compiled with another header is refused too.
inline constexpr uint32_t kSynclineCudaAbi = 3;

struct SynclineCudaInfo {
  // kSynclineCudaAbi of the module. First forever: that is where modules of any number
  // write theirs.
  uint32_t abi;
  uint32_t struct_bytes;      // sizeof of the caller's struct; no more is written.
  int32_t runtime_version;    // 13000 is CUDA 13.0.
  int32_t driver_version;     // The newest CUDA the driver knows; 0 without a driver.
  int32_t device_count;       // That this runtime can use; 0 when `message` says why.
  const char* architectures;  // "sm_80 sm_90 ptx_90"; static storage.
  const char* message;        // Empty when devices are usable; static storage.
};

extern "C" {
// Fills `info`. Makes no CUDA context, but initialises the driver: a child forked
// afterwards cannot use CUDA unless it starts another program.
void SynclineCudaDescribe(SynclineCudaInfo* info);
using SynclineCudaDescribeFn = void(SynclineCudaInfo*);
}
