#include "comm/collective/element/element.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/dtype.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

double Read(ElementType type, const std::byte* at) {
  const auto as = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (type) {
    case ElementType::kF32:
      return as(float{});
    case ElementType::kBf16:
      return FloatFromBf16(as(uint16_t{}));
    case ElementType::kF16:
      return FloatFromF16(as(uint16_t{}));
    case ElementType::kF64:
      return as(double{});
    case ElementType::kI64:
      return static_cast<double>(as(int64_t{}));
    case ElementType::kI32:
      return as(int32_t{});
    case ElementType::kI8:
      return as(int8_t{});
    case ElementType::kU8:
      return as(uint8_t{});
  }
  return 0;
}

void Write(ElementType type, double value, std::byte* at) {
  const auto put = [&](auto bits) { std::memcpy(at, &bits, sizeof bits); };
  switch (type) {
    case ElementType::kF32:
      return put(static_cast<float>(value));
    case ElementType::kBf16:
      return put(Bf16FromFloat(static_cast<float>(value)));
    case ElementType::kF16:
      return put(F16FromFloat(static_cast<float>(value)));
    case ElementType::kF64:
      return put(value);
    case ElementType::kI64:
      return put(static_cast<int64_t>(value));
    case ElementType::kI32:
      return put(static_cast<int32_t>(value));
    case ElementType::kI8:
      return put(static_cast<int8_t>(value));
    case ElementType::kU8:
      return put(static_cast<uint8_t>(value));
  }
}

double Oracle(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return a + b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kPremultipliedSum:
      return a + b;
    case ReduceOp::kBitwiseAnd:
      return static_cast<double>(static_cast<int>(a) & static_cast<int>(b));
    case ReduceOp::kBitwiseOr:
      return static_cast<double>(static_cast<int>(a) | static_cast<int>(b));
    case ReduceOp::kBitwiseXor:
      return static_cast<double>(static_cast<int>(a) ^ static_cast<int>(b));
  }
  return 0;
}

// Uses small numbers, so that sums and products are exact in every type.
TEST(Combine, IsRightForEveryTypeOperationAndLength) {
  std::mt19937 random(7);
  for (int t = 0; t < kElementTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      for (const size_t count : {0u, 1u, 63u, 64u, 65u, 1023u, 1024u, 1025u, 4099u}) {
        const auto type = static_cast<ElementType>(t);
        const auto op = static_cast<ReduceOp>(o);
        if (!IsDefined(type, op)) continue;
        const size_t bytes = ElementBytes(type);
        std::vector<std::vector<std::byte>> parts(4,
                                                  std::vector<std::byte>(count * bytes));
        for (auto& part : parts) {
          for (size_t i = 0; i < count; ++i) Write(type, random() % 3, &part[i * bytes]);
        }
        std::vector<double> expected(count);
        for (size_t i = 0; i < count; ++i) {
          expected[i] = Read(type, &parts[0][i * bytes]);
          for (size_t k = 1; k < parts.size(); ++k) {
            expected[i] = Oracle(op, expected[i], Read(type, &parts[k][i * bytes]));
          }
          if (op == ReduceOp::kAverage) {
            expected[i] /= 4;
            if (type >= ElementType::kI64) expected[i] = std::trunc(expected[i]);
          }
        }
        const std::byte* const others[] = {parts[1].data(), parts[2].data(),
                                           parts[3].data()};
        // The result may replace the first operand.
        Combine({.type = type, .op = op, .divide_by = 4}, count, parts[0].data(), others,
                parts[0].data());
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(Read(type, &parts[0][i * bytes]), expected[i])
              << std::string(ElementName(type)) << " " << std::string(ReduceName(op))
              << " element " << i << " of " << count;
        }
      }
    }
  }
}

// In the order of ranks, a rank's own values, which the result replaces, may be anywhere
// in the list.
TEST(Combine, OutMayBeAnyOfThem) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> wide(-1e6, 1e6);
  for (const ElementType type :
       {ElementType::kF32, ElementType::kF64, ElementType::kBf16, ElementType::kI32}) {
    const size_t bytes = ElementBytes(type);
    for (const size_t count : {1u, 65u, 1024u, 2500u}) {
      std::vector<std::vector<std::byte>> parts(5, std::vector<std::byte>(count * bytes));
      for (auto& part : parts) {
        for (size_t i = 0; i < count; ++i) Write(type, wide(random), &part[i * bytes]);
      }
      const auto combined = [&](size_t own) {
        auto copies = parts;
        std::vector<const std::byte*> others;
        for (size_t k = 1; k < copies.size(); ++k) others.push_back(copies[k].data());
        Combine({.type = type, .op = ReduceOp::kAverage, .divide_by = 5}, count,
                copies[0].data(), others, copies[own].data());
        return copies[own];
      };
      for (size_t own = 1; own < parts.size(); ++own) {
        ASSERT_EQ(combined(own), combined(0))
            << std::string(ElementName(type)) << ", " << count << " into " << own;
      }
    }
  }
}

TEST(Combine, RoundsHalvesOnce) {
  // 256 + 1 is 256 in BF16, and 256 + 1 + 1 is 258 when it is rounded once.
  const uint16_t large = Bf16FromFloat(256);
  const uint16_t one = Bf16FromFloat(1);
  const auto* const ones = reinterpret_cast<const std::byte*>(&one);
  const std::byte* const others[] = {ones, ones};
  uint16_t out = 0;
  Combine({.type = ElementType::kBf16}, 1, reinterpret_cast<const std::byte*>(&large),
          others, reinterpret_cast<std::byte*>(&out));
  EXPECT_EQ(FloatFromBf16(out), 258);
}

TEST(Combine, IntegersWrapAround) {
  const int8_t a = 100;
  const std::byte* const others[] = {reinterpret_cast<const std::byte*>(&a)};
  int8_t out = 0;
  const auto combine = [&](ReduceOp op) {
    Combine({.type = ElementType::kI8, .op = op}, 1,
            reinterpret_cast<const std::byte*>(&a), others,
            reinterpret_cast<std::byte*>(&out));
    return out;
  };
  EXPECT_EQ(combine(ReduceOp::kSum), static_cast<int8_t>(200));
  EXPECT_EQ(combine(ReduceOp::kProduct), static_cast<int8_t>(10000));
}

TEST(Combine, BitwiseReductionsUseAllBits) {
  const auto combine = [](ReduceOp op, auto a, auto b) {
    decltype(a) out = 0;
    const auto* const right = reinterpret_cast<const std::byte*>(&b);
    const ElementType type = sizeof a == 8                   ? ElementType::kI64
                             : sizeof a == 4                 ? ElementType::kI32
                             : std::is_signed_v<decltype(a)> ? ElementType::kI8
                                                             : ElementType::kU8;
    Combine({.type = type, .op = op}, 1, reinterpret_cast<const std::byte*>(&a),
            {&right, 1}, reinterpret_cast<std::byte*>(&out));
    return out;
  };
  const auto check = [&](auto a, auto b) {
    using T = decltype(a);
    EXPECT_EQ(combine(ReduceOp::kBitwiseAnd, a, b), static_cast<T>(a & b));
    EXPECT_EQ(combine(ReduceOp::kBitwiseOr, a, b), static_cast<T>(a | b));
    EXPECT_EQ(combine(ReduceOp::kBitwiseXor, a, b), static_cast<T>(a ^ b));
  };
  check(int64_t{-0x123456789abcdef}, int64_t{0x7edcba9876543210});
  check(int32_t{-0x1234567}, int32_t{0x76543210});
  check(int8_t{-77}, int8_t{0x5a});
  check(uint8_t{0xc3}, uint8_t{0x5a});
}

TEST(Combine, WhatIsNoReductionIsRefusedByName) {
  for (int t = 0; t < kElementTypes; ++t) {
    const auto type = static_cast<ElementType>(t);
    const bool is_integer = type >= ElementType::kI64;
    for (int o = 0; o < kReduceOps; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      const absl::Status status = CheckReduction(type, op, 2);
      EXPECT_EQ(status.ok(), is_integer || op < ReduceOp::kBitwiseAnd);
      EXPECT_EQ(status.ok(), IsDefined(type, op));
    }
    EXPECT_EQ(CheckReduction(type, ReduceOp::kPremultipliedSum, 0.5).ok(), !is_integer);
    EXPECT_EQ(CheckReduction(type, ReduceOp::kPremultipliedSum, 1e300).ok(), !is_integer);
  }
}

TEST(Scale, IsRightForEveryTypeAndFactor) {
  for (int t = 0; t < kElementTypes; ++t) {
    const auto type = static_cast<ElementType>(t);
    const size_t bytes = ElementBytes(type);
    for (const double factor : {0.0, 1.0, 3.0, 0.5}) {
      if (!CheckReduction(type, ReduceOp::kPremultipliedSum, factor).ok()) continue;
      for (const size_t count : {0u, 1u, 65u}) {
        std::vector<std::byte> values(count * bytes);
        for (size_t i = 0; i < count; ++i) {
          Write(type, static_cast<double>(i % 9), &values[i * bytes]);
        }
        Scale(type, factor, count, values.data());
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(Read(type, &values[i * bytes]), static_cast<double>(i % 9) * factor)
              << std::string(ElementName(type)) << " times " << factor;
        }
      }
    }
  }
  int8_t wraps = 100;
  Scale(ElementType::kI8, 3, 1, reinterpret_cast<std::byte*>(&wraps));
  EXPECT_EQ(wraps, static_cast<int8_t>(300));
}

TEST(Combine, MinimumAndMaximumKeepNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (const bool first : {false, true}) {
      const float a = first ? nan : 1;
      const float b = first ? 1 : nan;
      const std::byte* const others[] = {reinterpret_cast<const std::byte*>(&b)};
      float out = 0;
      Combine({.op = op}, 1, reinterpret_cast<const std::byte*>(&a), others,
              reinterpret_cast<std::byte*>(&out));
      EXPECT_TRUE(std::isnan(out));
    }
  }
}

template <typename Bits>
void ExpectSameBitsEitherWay(ElementType type, const std::vector<Bits>& specials) {
  // As many as a vector holds, so that the vector kernel runs too.
  constexpr size_t kCount = 67;
  for (int o = 0; o < kReduceOps; ++o) {
    if (!IsDefined(type, static_cast<ReduceOp>(o))) continue;
    for (const Bits one : specials) {
      for (const Bits other : specials) {
        const std::vector<Bits> a(kCount, one);
        const std::vector<Bits> b(kCount, other);
        std::vector<Bits> out[2] = {std::vector<Bits>(kCount), std::vector<Bits>(kCount)};
        const auto* const left = reinterpret_cast<const std::byte*>(a.data());
        const auto* const right = reinterpret_cast<const std::byte*>(b.data());
        const Combination combination = {.type = type, .op = static_cast<ReduceOp>(o)};
        Combine(combination, kCount, left, {&right, 1},
                reinterpret_cast<std::byte*>(out[0].data()));
        Combine(combination, kCount, right, {&left, 1},
                reinterpret_cast<std::byte*>(out[1].data()));
        ASSERT_EQ(out[0], out[1]) << std::string(ElementName(type)) << " "
                                  << std::string(ReduceName(combination.op)) << " of "
                                  << one << " and " << other;
        ASSERT_EQ(out[0], std::vector<Bits>(kCount, out[0][0]));
      }
    }
  }
}

// Uses zeros of both signs, ones, infinities, and NaNs of several signs and payloads.
TEST(Combine, GivesTheSameBitsWhicheverComesFirst) {
  ExpectSameBitsEitherWay<uint32_t>(
      ElementType::kF32, {0, 0x80000000, 0x3F800000, 0x7F800000, 0xFF800000, 0x7FC00000,
                          0x7FC00001, 0xFFC00000, 0xFFC12345, 0x7F800001});
  ExpectSameBitsEitherWay<uint64_t>(
      ElementType::kF64, {0, 0x8000000000000000, 0x3FF0000000000000, 0x7FF0000000000000,
                          0xFFF0000000000000, 0x7FF8000000000001, 0xFFF8000000000002});
  ExpectSameBitsEitherWay<uint16_t>(ElementType::kBf16,
                                    {0, 0x8000, 0x3F80, 0x7F80, 0xFF80, 0x7FC1, 0xFFC2});
  ExpectSameBitsEitherWay<uint16_t>(ElementType::kF16,
                                    {0, 0x8000, 0x3C00, 0x7C00, 0xFC00, 0x7E01, 0xFE02});
}

}  // namespace
}  // namespace syncline::collective
