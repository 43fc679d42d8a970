#include "comm/collective/element/element.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "comm/base/dtype.h"
#include "comm/base/isa.h"

namespace syncline::collective {
namespace {

// Number of elements that are combined at a time; they stay in the first-level cache.
constexpr size_t kStrip = 1024;

// All operations give the same bits for either order of operands, because in some
// algorithms ranks combine the same values in different orders.
template <typename T>
T OneNan(T value) {
  return value != value ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

struct Sum {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // arithmetic on it wraps around
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return OneNan(a + b);
    }
  }
};
struct Product {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      return OneNan(a * b);
    }
  }
};
struct Min {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return b < a ? b : a;
    } else {
      using Bits = BitsOf<T>;  // equal values differ in bits only if they are zeros
      const T equal = std::bit_cast<T>(std::bit_cast<Bits>(a) | std::bit_cast<Bits>(b));
      const T least = b < a ? b : a < b ? a : equal;
      return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : least;
    }
  }
};
struct Max {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a < b ? b : a;
    } else {
      using Bits = BitsOf<T>;
      const T equal = std::bit_cast<T>(std::bit_cast<Bits>(a) & std::bit_cast<Bits>(b));
      const T most = a < b ? b : b < a ? a : equal;
      return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : most;
    }
  }
};

struct And {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// `a` may be `out`.
template <typename T, typename Op>
SYNCLINE_KERNEL void Pair(size_t n, const T* a, const T* b, T* out) {
#ifndef __clang__  // clang checks for overlap at run time, and warns of the pragma
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < n; ++i) out[i] = Op::Of(a[i], b[i]);
}

template <typename T>
SYNCLINE_KERNEL void Divide(size_t n, T divisor, T* values) {
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<T>(values[i] / divisor);
}

struct Bf16 {
  static float Widen(uint16_t bits) { return FloatFromBf16(bits); }
  static uint16_t Narrow(float value) { return Bf16FromFloat(value); }
};
struct F16 {
  static float Widen(uint16_t bits) { return FloatFromF16(bits); }
  static uint16_t Narrow(float value) { return F16FromFloat(value); }
};

template <typename Half>
SYNCLINE_KERNEL void WidenAll(size_t n, const uint16_t* in, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = Half::Widen(in[i]);
}
template <typename Half>
SYNCLINE_KERNEL void NarrowAll(size_t n, const float* in, uint16_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = Half::Narrow(in[i]);
}

template <typename T>
using PairFunction = void (*)(size_t, const T*, const T*, T*);

template <typename T>
PairFunction<T> FindPair(ReduceOp op) {
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::kBitwiseAnd) return &Kernel<Pair<T, And>>::Run;
    if (op == ReduceOp::kBitwiseOr) return &Kernel<Pair<T, Or>>::Run;
    if (op == ReduceOp::kBitwiseXor) return &Kernel<Pair<T, Xor>>::Run;
  }
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kPremultipliedSum:
      return &Kernel<Pair<T, Sum>>::Run;
    case ReduceOp::kMin:
      return &Kernel<Pair<T, Min>>::Run;
    case ReduceOp::kMax:
      return &Kernel<Pair<T, Max>>::Run;
    case ReduceOp::kProduct:
      return &Kernel<Pair<T, Product>>::Run;
    default:
      break;
  }
  return nullptr;
}

bool Divides(const Combination& combination) {
  return combination.op == ReduceOp::kAverage && combination.divide_by > 1;
}

template <typename T>
struct CombineAs {
  static void Run(const Combination& combination, size_t count, const std::byte* first,
                  std::span<const std::byte* const> others, std::byte* out) {
    const PairFunction<T> pair = FindPair<T>(combination.op);
    // The old values of `out` must not be lost before their turn.
    const bool has_turn = std::find(others.begin(), others.end(), out) != others.end();
    alignas(64) std::array<T, kStrip> before;
    for (size_t begin = 0; begin < count; begin += kStrip) {
      const size_t n = std::min(kStrip, count - begin);
      const T* left = reinterpret_cast<const T*>(first) + begin;
      T* const end = reinterpret_cast<T*>(out) + begin;
      T* to = has_turn ? before.data() : end;
      for (const std::byte* other : others) {
        if (other == out) to = end;
        pair(n, left, reinterpret_cast<const T*>(other) + begin, to);
        left = to;
      }
      if (Divides(combination)) {
        // As int8_t, 200 ranks would be a negative divisor.
        if constexpr (sizeof(T) == 1) {
          for (size_t i = 0; i < n; ++i)
            end[i] = static_cast<T>(end[i] / combination.divide_by);
        } else {
          Kernel<Divide<T>>::Run(n, static_cast<T>(combination.divide_by), end);
        }
      }
    }
  }
};

template <typename Half>
struct CombineHalves {
  static void Run(const Combination& combination, size_t count, const std::byte* first,
                  std::span<const std::byte* const> others, std::byte* out) {
    const PairFunction<float> pair = FindPair<float>(combination.op);
    alignas(64) std::array<float, kStrip> left;
    alignas(64) std::array<float, kStrip> right;
    const auto halves = [](const std::byte* bytes, size_t begin) {
      return reinterpret_cast<const uint16_t*>(bytes) + begin;
    };
    for (size_t begin = 0; begin < count; begin += kStrip) {
      const size_t n = std::min(kStrip, count - begin);
      Kernel<WidenAll<Half>>::Run(n, halves(first, begin), left.data());
      for (const std::byte* other : others) {
        Kernel<WidenAll<Half>>::Run(n, halves(other, begin), right.data());
        pair(n, left.data(), right.data(), left.data());
      }
      if (Divides(combination)) {
        Kernel<Divide<float>>::Run(n, static_cast<float>(combination.divide_by),
                                   left.data());
      }
      Kernel<NarrowAll<Half>>::Run(n, left.data(),
                                   reinterpret_cast<uint16_t*>(out) + begin);
    }
  }
};

constexpr std::array<std::string_view, kElementTypes> kTypeNames = {
    "f32", "bf16", "f16", "f64", "i64", "i32", "i8", "u8"};
constexpr std::array<size_t, kElementTypes> kTypeBytes = {4, 2, 2, 8, 8, 4, 1, 1};
constexpr std::array<std::string_view, kReduceOps> kReduceNames = {
    "sum",         "average",    "min",        "max", "product", "premultiplied_sum",
    "bitwise_and", "bitwise_or", "bitwise_xor"};

template <typename T>
void ScaleAs(double factor, size_t count, std::byte* bytes) {
  auto* const values = reinterpret_cast<T*>(bytes);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {
      values[i] = Product::Of(values[i], static_cast<T>(static_cast<int64_t>(factor)));
    } else {
      values[i] = OneNan(static_cast<T>(static_cast<double>(values[i]) * factor));
    }
  }
}

template <typename Half>
void ScaleHalves(double factor, size_t count, std::byte* bytes) {
  auto* const values = reinterpret_cast<uint16_t*>(bytes);
  for (size_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(Half::Widen(values[i])) * factor;
    values[i] = Half::Narrow(OneNan(static_cast<float>(value)));
  }
}

bool IsInteger(ElementType type) {
  return type == ElementType::kI64 || type == ElementType::kI32 ||
         type == ElementType::kI8 || type == ElementType::kU8;
}

}  // namespace

bool IsDefined(ElementType type, ReduceOp op) {
  const bool is_bitwise = op == ReduceOp::kBitwiseAnd || op == ReduceOp::kBitwiseOr ||
                          op == ReduceOp::kBitwiseXor;
  return !is_bitwise || IsInteger(type);
}

absl::Status CheckReduction(ElementType type, ReduceOp op, double factor) {
  if (!IsDefined(type, op)) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(ReduceName(op)), " of ", std::string(ElementName(type)),
                     ": bitwise reductions are of i64, i32, i8 and u8"));
  }
  if (op != ReduceOp::kPremultipliedSum || !IsInteger(type)) return absl::OkStatus();
  constexpr double kLargestFactor = 0x1p53;
  if (factor == std::trunc(factor) && std::abs(factor) <= kLargestFactor) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a premultiplied_sum of ", std::string(ElementName(type)), " by ", factor,
      ": of integers the factor is a whole number from -2^53 to 2^53"));
}

void Scale(ElementType type, double factor, size_t count, std::byte* values) {
  switch (type) {
    case ElementType::kF32:
      return ScaleAs<float>(factor, count, values);
    case ElementType::kBf16:
      return ScaleHalves<Bf16>(factor, count, values);
    case ElementType::kF16:
      return ScaleHalves<F16>(factor, count, values);
    case ElementType::kF64:
      return ScaleAs<double>(factor, count, values);
    case ElementType::kI64:
      return ScaleAs<int64_t>(factor, count, values);
    case ElementType::kI32:
      return ScaleAs<int32_t>(factor, count, values);
    case ElementType::kI8:
      return ScaleAs<int8_t>(factor, count, values);
    case ElementType::kU8:
      return ScaleAs<uint8_t>(factor, count, values);
  }
}

bool OrderMatters(ElementType type, ReduceOp op) {
  const bool is_float = type == ElementType::kF32 || type == ElementType::kF64;
  return (is_float || RoundsPartials(type)) && op != ReduceOp::kMin &&
         op != ReduceOp::kMax;
}

bool RoundsPartials(ElementType type) {
  return type == ElementType::kBf16 || type == ElementType::kF16;
}

size_t ElementBytes(ElementType type) { return kTypeBytes.at(static_cast<size_t>(type)); }

std::string_view ElementName(ElementType type) {
  const auto index = static_cast<size_t>(type);
  return index < kTypeNames.size() ? kTypeNames.at(index) : "unknown";
}

std::string_view ReduceName(ReduceOp op) {
  const auto index = static_cast<size_t>(op);
  return index < kReduceNames.size() ? kReduceNames.at(index) : "unknown";
}

void Combine(const Combination& combination, size_t count, const std::byte* first,
             std::span<const std::byte* const> others, std::byte* out) {
  switch (combination.type) {
    case ElementType::kF32:
      return CombineAs<float>::Run(combination, count, first, others, out);
    case ElementType::kBf16:
      return CombineHalves<Bf16>::Run(combination, count, first, others, out);
    case ElementType::kF16:
      return CombineHalves<F16>::Run(combination, count, first, others, out);
    case ElementType::kF64:
      return CombineAs<double>::Run(combination, count, first, others, out);
    case ElementType::kI64:
      return CombineAs<int64_t>::Run(combination, count, first, others, out);
    case ElementType::kI32:
      return CombineAs<int32_t>::Run(combination, count, first, others, out);
    case ElementType::kI8:
      return CombineAs<int8_t>::Run(combination, count, first, others, out);
    case ElementType::kU8:
      return CombineAs<uint8_t>::Run(combination, count, first, others, out);
  }
}

}  // namespace syncline::collective
