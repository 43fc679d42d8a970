// Keeps the last error of each thread.
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/exit_codes.h"
#include "comm/collective/group/call.h"
#include "worker/c/handles.h"

namespace syncline::c {
namespace {

struct LastError {
  std::string message;
  int exit_code = kExitDone;
  int rank = -1;
};

LastError& OfThisThread() {
  thread_local LastError last;
  return last;
}

}  // namespace

syncline_code Report(const absl::Status& status) noexcept {
  if (status.ok()) return SYNCLINE_OK;
  try {
    LastError& last = OfThisThread();
    last.exit_code = ExitCodeOf(status);
    last.rank = collective::FailedRank(status).value_or(-1);
    last.message.assign(status.message().data(), status.message().size());
  } catch (...) {  // without memory only the code is kept
  }
  return static_cast<syncline_code>(status.raw_code());
}

absl::Status NullArgument(const char* name) {
  return absl::InvalidArgumentError(absl::StrCat("argument ", name, " is NULL"));
}

}  // namespace syncline::c

using syncline::c::OfThisThread;

const char* syncline_version(void) { return SYNCLINE_VERSION; }
uint32_t syncline_abi_version(void) { return SYNCLINE_ABI_VERSION; }
const char* syncline_last_error(void) { return OfThisThread().message.c_str(); }
int syncline_last_error_exit_code(void) { return OfThisThread().exit_code; }
int syncline_last_error_rank(void) { return OfThisThread().rank; }
