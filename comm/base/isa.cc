#include "comm/base/isa.h"

#include <array>
#include <cstdlib>

namespace syncline {
namespace {

constexpr std::array kAll = {Isa::kBaseline, Isa::kX86V3, Isa::kX86V4};

size_t CountSupported() {
#if defined(__x86_64__)
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 =
      v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
  return v4 ? 3 : v3 ? 2 : 1;
#else
  return 1;
#endif
}

Isa Choose() {
  const std::span<const Isa> supported = SupportedIsas();
  if (const char* wish = std::getenv("SYNCLINE_ISA"); wish != nullptr) {
    for (const Isa isa : supported) {
      const std::string_view name = IsaName(isa);
      if (wish == name || (name.starts_with("x86-64-") && wish == name.substr(7))) {
        return isa;
      }
    }
  }
  return supported.back();
}

}  // namespace

std::string_view IsaName(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kBaseline:
      return "x86-64-v2";
    case Isa::kX86V3:
      return "x86-64-v3";
    case Isa::kX86V4:
      return "x86-64-v4";
  }
  return "unknown";
#else
  return isa == Isa::kBaseline ? "arm64" : "unknown";
#endif
}

std::span<const Isa> SupportedIsas() {
  static const size_t count = CountSupported();
  return std::span(kAll).first(count);
}

Isa ActiveIsa() {
  static const Isa active = Choose();
  return active;
}

}  // namespace syncline
