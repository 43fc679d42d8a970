// The C interface of libsyncline_cuda.so, the module with all CUDA code. It is opened
// only at run time, so that one binary serves machines with and without a GPU. It uses
// plain C types, because the two sides may come from different compilers.
#pragma once

#include <cstdint>

// Must be increased with every change of an exported function or of a struct that it
// takes (codecs.h, cast.h, memory.h). The loader refuses a module with another number.
// These structs begin with their own size, so that a caller that was compiled with
// another header is refused too.
inline constexpr uint32_t kSynclineCudaAbi = 3;

struct SynclineCudaInfo {
  // kSynclineCudaAbi of the module. It must always be the first field, because modules
  // with any number write it there.
  uint32_t abi;
  uint32_t struct_bytes;      // sizeof of the caller's struct; no more is written.
  int32_t runtime_version;    // 13000 is CUDA 13.0.
  int32_t driver_version;     // The newest CUDA the driver knows; 0 without a driver.
  int32_t device_count;       // usable by this runtime; 0: `message` says why
  const char* architectures;  // "sm_80 sm_90 ptx_90"; static storage.
  const char* message;        // Empty when devices are usable; static storage.
};

extern "C" {
// Fills `info`. It creates no CUDA context, but it initialises the driver: a child that
// is forked afterwards cannot use CUDA unless it starts another program.
void SynclineCudaDescribe(SynclineCudaInfo* info);
using SynclineCudaDescribeFn = void(SynclineCudaInfo*);
}
