#include "comm/base/cuda/driver.h"

#include <dlfcn.h>

namespace syncline {
namespace {

// Types of functions in cuda.h, which need not be installed. They return 0 for success.
using InitFn = int(unsigned);
using GetNumberFn = int(int*);

constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE

template <typename Function>
Function* Find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

std::string CudaVersionName(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CudaDriver ProbeCudaDriverLibrary(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {.message = std::string("no NVIDIA driver: ") + dlerror()};
  }
  auto* const init = Find<InitFn>(handle, "cuInit");
  auto* const get_version = Find<GetNumberFn>(handle, "cuDriverGetVersion");
  auto* const get_count = Find<GetNumberFn>(handle, "cuDeviceGetCount");
  if (init == nullptr || get_version == nullptr || get_count == nullptr) {
    return {.message = library + " is not an NVIDIA driver"};
  }
  CudaDriver driver;
  get_version(&driver.version);
  const std::string name = "driver for CUDA " + CudaVersionName(driver.version);
  int error = init(0);
  if (error == 0) error = get_count(&driver.device_count);
  if (error == kNoDevice) {
    driver.message = name + ", no device (is CUDA_VISIBLE_DEVICES empty?)";
  } else if (error != 0) {
    driver.message =
        name + " does not start: error " + std::to_string(error) + "; see nvidia-smi";
  } else {
    driver.message = name + ", " + std::to_string(driver.device_count) + " device(s)";
  }
  return driver;
}

CudaDriver ProbeCudaDriver() { return ProbeCudaDriverLibrary("libcuda.so.1"); }

}  // namespace syncline
