// CHECK for invariants, whose violation is a bug in Syncline: a process with a bug must
// not change weights. It prints the place and the condition, and aborts. It must never be
// used on external input.
#pragma once

namespace syncline {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace syncline

#define SYNCLINE_CHECK(condition)     \
  ((condition) ? static_cast<void>(0) \
               : ::syncline::CheckFailed(__FILE__, __LINE__, #condition))
