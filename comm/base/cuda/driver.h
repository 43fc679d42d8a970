// Counts the GPUs that the NVIDIA driver shows to this process. It opens libcuda.so.1 at
// run time and needs neither linked CUDA nor the CUDA module. The driver knows its
// devices whatever the version of the CUDA runtime, and obeys CUDA_VISIBLE_DEVICES. A
// machine without a driver is a normal case; the message says what is missing.
//
//   const CudaDriver driver = ProbeCudaDriver();  // {12040, 8, "driver for CUDA 12.4"}
//
// Thread-safe. It initialises the driver, which stays open for the life of the process: a
// child forked afterwards cannot use CUDA unless it starts another program.
#pragma once

#include <string>

namespace syncline {

struct CudaDriver {
  int version = 0;  // 12040 knows CUDA 12.4; 0 without a driver.
  int device_count = 0;
  std::string message;  // One line for people; never empty.
};

CudaDriver ProbeCudaDriver();

// Opens `library`: a path, or a name for the dynamic linker to find.
CudaDriver ProbeCudaDriverLibrary(const std::string& library);

// 13000 becomes "13.0".
std::string CudaVersionName(int version);

}  // namespace syncline
