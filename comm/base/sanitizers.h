// Defines SYNCLINE_ASAN or SYNCLINE_TSAN if the code is compiled with that sanitizer. GCC
// tells it by a macro, clang by a feature.
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
