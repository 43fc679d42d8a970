// CHECK: a broken invariant is a bug of ours, and a process with a bug must not touch
// weights. Prints where and why, then aborts. Never used on input that comes from
// outside.
#pragma once

namespace syncline {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace syncline

#define SYNCLINE_CHECK(condition)     \
  ((condition) ? static_cast<void>(0) \
               : ::syncline::CheckFailed(__FILE__, __LINE__, #condition))
