// What the handles of syncline.h contain, and the guard around every call: no exception
// leaves the library, and no argument can end the process.
#pragma once

#include <unistd.h>

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/c/syncline.h"
#include "worker/client/session.h"

struct syncline_options {
  syncline::SessionOptions values;
  std::string given_out;  // last result of syncline_options_get
};

struct syncline_session {
  explicit syncline_session(std::unique_ptr<syncline::Session> made)
      : session(std::move(made)), process(getpid()) {}

  const std::unique_ptr<syncline::Session> session;
  const pid_t process;
};

struct syncline_memory {
  std::shared_ptr<void> data;
};

namespace syncline::c {

// Stores the error for syncline_last_error of this thread, and returns its code.
syncline_code Report(const absl::Status& status) noexcept;

absl::Status NullArgument(const char* name);

// Runs `call`, which returns an absl::Status, and reports the result.
template <typename Call>
syncline_code Guarded(const Call& call) noexcept {
  try {
    return Report(call());
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("this process is out of memory"));
  } catch (const std::exception& error) {
    return Report(absl::InternalError(error.what()));
  } catch (...) {
    return Report(absl::InternalError("an exception of unknown type"));
  }
}

}  // namespace syncline::c
