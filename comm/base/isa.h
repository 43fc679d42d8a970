// Instruction-set levels, and kernels built once for each of them.
//
// A shipped binary runs on any x86-64-v2 CPU (2009 and later) or any 64-bit ARM one, yet
// uses AVX2 or AVX-512 where they are. Kernels stay plain loops; the compiler vectorises
// one copy for each level, and the level is chosen at run time:
//
//   SYNCLINE_KERNEL void AddBody(size_t n, const float* x, float* y) {
//     for (size_t i = 0; i < n; ++i) y[i] += x[i];
//   }
//   ...
//   Kernel<AddBody>::Run(n, x, y);
//
// All levels give the same bits: the build forbids contraction (-ffp-contract=off) and
// IEEE 754 fixes every other operation. Tests of kernels run once for each level (ISAS in
// cmake/Syncline.cmake); SYNCLINE_ISA chooses a lower level than the CPU has.
//
// Write a kernel for a whole strip of work: the choice costs one predictable branch.
#pragma once

#include <span>
#include <string_view>

namespace syncline {

// In ascending order. kBaseline is x86-64-v2 on x86 and plain ARMv8 elsewhere.
enum class Isa { kBaseline, kX86V3, kX86V4 };

// Returns "x86-64-v4", "x86-64-v3", "x86-64-v2" or "arm64".
std::string_view IsaName(Isa isa);

// Returns the levels that this CPU can run, in ascending order; never empty.
std::span<const Isa> SupportedIsas();

// Returns the highest supported level, or a lower one that SYNCLINE_ISA names (v2, v3, v4
// or a full name). Fixed at the first call.
Isa ActiveIsa();

// The function is compiled into every copy, so it must share nothing with other files: it
// may call only library functions that are builtins.
#define SYNCLINE_KERNEL [[gnu::always_inline]] static inline

#if defined(__x86_64__)
#define SYNCLINE_TARGET_BASELINE __attribute__((target("arch=x86-64-v2")))
#define SYNCLINE_TARGET_V3 __attribute__((target("arch=x86-64-v3")))
#define SYNCLINE_TARGET_V4 __attribute__((target("arch=x86-64-v4")))
#else
#define SYNCLINE_TARGET_BASELINE
#define SYNCLINE_TARGET_V3
#define SYNCLINE_TARGET_V4
#endif

template <auto kBody>
class Kernel;

template <typename... Args, void (*kBody)(Args...)>
class Kernel<kBody> {
 public:
  static void Run(Args... args) {
    switch (ActiveIsa()) {
      case Isa::kX86V4:
        return V4(args...);
      case Isa::kX86V3:
        return V3(args...);
      case Isa::kBaseline:
        return Baseline(args...);
    }
  }

 private:
  SYNCLINE_TARGET_V4 static void V4(Args... args) { kBody(args...); }
  SYNCLINE_TARGET_V3 static void V3(Args... args) { kBody(args...); }
  SYNCLINE_TARGET_BASELINE static void Baseline(Args... args) { kBody(args...); }
};

}  // namespace syncline
