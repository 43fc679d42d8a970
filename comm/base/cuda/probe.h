// Says what CUDA can do for this process, without linking CUDA: finds the module, opens
// it and asks it. A machine without GPU, driver or module is the normal case, so nothing
// here fails; the message says what is missing.
//
//   const CudaProbe probe = ProbeCuda();
//   // "CUDA module loaded, no device: no CUDA-capable device..."
//   if (probe.device_count == 0) Print(probe.message);
//
// Thread-safe. A child forked afterwards cannot use CUDA unless it starts another program
// (module_abi.h). The module stays open for the life of the process, since unloading it
// would pull code from under the CUDA runtime's own threads.
#pragma once

#include <string>

namespace syncline {

struct CudaProbe {
  bool compiled = false;      // This build made a module (nvcc was found).
  bool loaded = false;        // The module was found, opened, and fits this binary.
  int device_count = 0;       // That the module can use; driver.h counts all.
  int runtime_version = 0;    // 13000 is CUDA 13.0; 0 when not loaded.
  int driver_version = 0;     // 0 without a driver.
  std::string architectures;  // What the kernels were compiled for: "sm_80 sm_90 ptx_90".
  std::string path;           // Of the module that was tried last.
  std::string message;        // One line for people; never empty.
  void* module = nullptr;     // What dlsym takes; null unless loaded.
};

// Opens $SYNCLINE_CUDA_MODULE if set, otherwise the first libsyncline_cuda.so that is
// there: beside the shared library or program that this code is in, beside the program
// (of Python, for one), in ../lib of it.
CudaProbe ProbeCuda();

// Opens the module at `path`.
CudaProbe ProbeCudaModule(const std::string& path);

}  // namespace syncline
