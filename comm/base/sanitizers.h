// Which sanitizer this is compiled with: SYNCLINE_ASAN, SYNCLINE_TSAN or neither. GCC says
// so with a macro, clang with a feature.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define SYNCLINE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SYNCLINE_ASAN 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define SYNCLINE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SYNCLINE_TSAN 1
#endif
#endif
