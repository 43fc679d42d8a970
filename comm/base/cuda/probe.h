// Says what CUDA can do for this process, without linking CUDA: it finds the module,
// opens it and queries it. A machine without GPU, driver or module is a normal case, so
// nothing here fails; the message says what is missing.
//
//   const CudaProbe probe = ProbeCuda();
//   // "CUDA module loaded, no device: no CUDA-capable device..."
//   if (probe.device_count == 0) Print(probe.message);
//
// Thread-safe. A child that is forked afterwards cannot use CUDA unless it starts another
// program (module_abi.h). The module stays open as long as the process, because the CUDA
// runtime's own threads run its code.
#pragma once

#include <string>

namespace syncline {

struct CudaProbe {
  bool compiled = false;      // This build made a module (nvcc was found).
  bool loaded = false;        // The module was found, opened, and fits this binary.
  int device_count = 0;       // Usable by the module; driver.h counts all.
  int runtime_version = 0;    // 13000 is CUDA 13.0; 0 when not loaded.
  int driver_version = 0;     // 0 without a driver.
  std::string architectures;  // Targets of the kernels: "sm_80 sm_90 ptx_90".
  std::string path;           // Path of the module that was tried last.
  std::string message;        // One line for people; never empty.
  void* module = nullptr;     // Handle for dlsym; null unless loaded.
};

// Opens $SYNCLINE_CUDA_MODULE if it is set. Otherwise opens the first libsyncline_cuda.so
// that exists: beside the shared library or program that contains this code, beside the
// program (such as python), or in ../lib of it.
CudaProbe ProbeCuda();

// Opens the module at `path`.
CudaProbe ProbeCudaModule(const std::string& path);

}  // namespace syncline
