#include "comm/collective/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace syncline::collective {
namespace {

// The first version whose non-blocking communicators can be aborted safely.
constexpr int kOldest = 21900;

// Since 2.9 the minor number counts in hundreds: 2804 is 2.8.4, 22703 is 2.27.3.
std::string TextOf(int version) {
  const int scale = version < 10000 ? 1000 : 10000;
  return absl::StrCat(version / scale, ".", version % scale / 100, ".", version % 100);
}

// Finds functions by name and remembers the first one that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}

  template <typename Function>
  void Find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

}  // namespace

std::string NcclLibrary::Default() {
  const char* const given = std::getenv("SYNCLINE_NCCL_LIBRARY");
  return given != nullptr && *given != 0 ? given : "libnccl.so.2";
}

std::string NcclLibrary::VersionText() const { return TextOf(version); }

absl::StatusOr<NcclLibrary> NcclLibrary::Open(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::NotFoundError(absl::StrCat("no NCCL: ", dlerror()));
  }
  NcclLibrary nccl;
  Finder finder(handle);
  finder.Find("ncclGetVersion", nccl.get_version);
  if (nccl.get_version == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(library, " is not an NCCL library"));
  }
  if (const int error = nccl.get_version(&nccl.version); error != kNcclSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat(library, ": ncclGetVersion returned ", error));
  }
  finder.Find("ncclGetUniqueId", nccl.get_unique_id);
  finder.Find("ncclGetErrorString", nccl.get_error_string);
  finder.Find("ncclGetLastError", nccl.get_last_error);
  finder.Find("ncclCommInitRankConfig", nccl.comm_init);
  finder.Find("ncclCommGetAsyncError", nccl.comm_get_async_error);
  finder.Find("ncclCommFinalize", nccl.comm_finalize);
  finder.Find("ncclCommDestroy", nccl.comm_destroy);
  finder.Find("ncclCommAbort", nccl.comm_abort);
  finder.Find("ncclGroupStart", nccl.group_start);
  finder.Find("ncclGroupEnd", nccl.group_end);
  finder.Find("ncclAllReduce", nccl.all_reduce);
  finder.Find("ncclReduce", nccl.reduce);
  finder.Find("ncclReduceScatter", nccl.reduce_scatter);
  finder.Find("ncclAllGather", nccl.all_gather);
  finder.Find("ncclBroadcast", nccl.broadcast);
  finder.Find("ncclSend", nccl.send);
  finder.Find("ncclRecv", nccl.receive);
  finder.Find("ncclRedOpCreatePreMulSum", nccl.create_premultiplied_sum);
  finder.Find("ncclRedOpDestroy", nccl.destroy_reduction);
  if (nccl.version < kOldest || !finder.missing().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "NCCL ", nccl.VersionText(), " is too old",
        finder.missing().empty() ? "" : absl::StrCat(", it has no ", finder.missing()),
        ": ", TextOf(kOldest), " or later is needed"));
  }
  return nccl;
}

}  // namespace syncline::collective
