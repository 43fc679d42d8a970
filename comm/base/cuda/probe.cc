#include "comm/base/cuda/probe.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "comm/base/cuda/driver.h"
#include "comm/base/cuda/exports.h"
#include "comm/base/cuda/module_abi.h"

namespace syncline {
namespace {

constexpr char kModuleName[] = "libsyncline_cuda.so";
constexpr char kEntryPoint[] = "SynclineCudaDescribe";
constexpr char kVariable[] = "SYNCLINE_CUDA_MODULE";

#ifdef SYNCLINE_CUDA_COMPILED
constexpr bool kCompiled = true;
#else
constexpr bool kCompiled = false;
#endif

// Returns the file of the shared library or program that contains this code (and
// kModuleName).
std::filesystem::path ThisFile(const std::filesystem::path& program) {
  Dl_info info = {};
  void* found = nullptr;
  if (dladdr1(kModuleName, &info, &found, RTLD_DL_LINKMAP) == 0) return program;
  // The name is empty for the main program.
  const std::string_view name = static_cast<const link_map*>(found)->l_name;
  if (name.empty()) return program;
  std::error_code error;
  return std::filesystem::absolute(name, error);
}

std::string DefaultModulePath() {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside_this = ThisFile(program).parent_path() / kModuleName;
  for (const std::filesystem::path& path :
       {beside_this, program.parent_path() / kModuleName,
        program.parent_path() / "../lib" / kModuleName}) {
    if (std::filesystem::exists(path, error)) return path.lexically_normal();
  }
  return beside_this;
}

void Describe(const SynclineCudaInfo& info, CudaProbe& probe) {
  probe.loaded = true;
  probe.device_count = info.device_count;
  probe.runtime_version = info.runtime_version;
  probe.driver_version = info.driver_version;
  probe.architectures = info.architectures;
  const bool is_too_old = info.driver_version != 0 &&
                          info.driver_version / 1000 < info.runtime_version / 1000;
  if (info.device_count == 0 && is_too_old) {
    probe.message = "CUDA module loaded, but it is built with CUDA " +
                    CudaVersionName(info.runtime_version) +
                    ", and this machine's driver knows " +
                    CudaVersionName(info.driver_version) +
                    ": update the driver (CUDA 12 needs 525, CUDA 13 needs 580), or "
                    "build the module with an older nvcc";
  } else if (info.device_count == 0 && info.driver_version == 0) {
    probe.message =
        "CUDA module loaded, no device: there is no NVIDIA driver (CUDA 12 needs 525, "
        "CUDA 13 "
        "needs 580)";
  } else if (info.device_count == 0) {
    probe.message = std::string("CUDA module loaded, no device: ") + info.message;
  } else {
    probe.message =
        "CUDA module loaded, " + std::to_string(info.device_count) + " device(s)";
  }
}

}  // namespace

CudaProbe ProbeCudaModule(const std::string& path) {
  CudaProbe probe;
  probe.compiled = kCompiled;
  probe.path = path;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    probe.message =
        kCompiled ? "no CUDA module at " + path
                  : "built without CUDA (nvcc was not found), and no module at " + path;
    return probe;
  }
  probe.message = WhyNotExported(path, kEntryPoint);
  if (!probe.message.empty()) return probe;
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    probe.message = std::string("cannot open the CUDA module: ") + dlerror();
    return probe;
  }
  auto* const describe =
      reinterpret_cast<SynclineCudaDescribeFn*>(dlsym(module, kEntryPoint));
  if (describe == nullptr) {
    probe.message = path + " is not a Syncline CUDA module: it has no " + kEntryPoint;
    return probe;
  }
  SynclineCudaInfo info{};
  info.struct_bytes = sizeof(info);
  describe(&info);
  if (info.abi != kSynclineCudaAbi) {
    probe.message = path + " has interface " + std::to_string(info.abi) +
                    ", this binary needs " + std::to_string(kSynclineCudaAbi) +
                    ": install both from one build";
    return probe;
  }
  Describe(info, probe);
  probe.module = module;
  return probe;
}

CudaProbe ProbeCuda() {
  const char* const configured = std::getenv(kVariable);
  if (configured == nullptr) return ProbeCudaModule(DefaultModulePath());
  CudaProbe probe = ProbeCudaModule(configured);
  if (!probe.loaded) {
    probe.message += std::string("; ") + kVariable + " says so: let it name the " +
                     kModuleName + " of this installation, or unset it";
  }
  return probe;
}

}  // namespace syncline
