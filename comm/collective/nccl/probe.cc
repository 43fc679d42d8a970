#include "comm/collective/nccl/probe.h"

#include <dlfcn.h>

namespace syncline {
namespace {

// ncclResult_t ncclGetVersion(int*); 0 is ncclSuccess. Written out because nccl.h need
// not be installed.
using GetVersionFn = int(int*);

// 2.9 began to count the minor number by hundreds: 2804 is 2.8.4, 22703 is 2.27.3.
std::string VersionText(int version) {
  const int scale = version < 10000 ? 1000 : 10000;
  return std::to_string(version / scale) + "." + std::to_string(version % scale / 100) +
         "." + std::to_string(version % 100);
}

}  // namespace

NcclProbe ProbeNcclLibrary(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {.message = std::string("no NCCL: ") + dlerror()};
  }
  auto* const get_version =
      reinterpret_cast<GetVersionFn*>(dlsym(handle, "ncclGetVersion"));
  if (get_version == nullptr) return {.message = library + " is no NCCL library"};
  int version = 0;
  if (const int error = get_version(&version); error != 0) {
    return {.message = library + ": ncclGetVersion returned " + std::to_string(error)};
  }
  return {.loaded = true, .version = version, .message = "NCCL " + VersionText(version)};
}

NcclProbe ProbeNccl() { return ProbeNcclLibrary("libnccl.so.2"); }

}  // namespace syncline
