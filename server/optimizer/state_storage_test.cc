#include "server/optimizer/state_storage.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "comm/base/crc32c.h"
#include "comm/base/dtype.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr SlotKind kCoded[] = {SlotKind::kSigned, SlotKind::kUnsigned};

std::vector<float> Normals(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> RoundTrip(StateType type, SlotKind kind,
                             std::span<const float> values) {
  std::vector<std::byte> memory(StateBytes(type, values.size()));
  StoreState({type, kind, memory.data()}, 0, values, {});
  std::vector<float> loaded(values.size(), -7.0f);
  LoadState({type, kind, memory.data()}, 0, loaded);
  return loaded;
}

void ExpectSameBits(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << i << ": " << got[i] << " instead of " << want[i];
  }
}

// Returns the nearest code, by comparing all of them in float64. If two are equally near,
// it is that of the larger magnitude.
uint8_t NearestCode(SlotKind kind, float multiple) {
  const auto codes = CodeValues(kind);
  size_t best = 0;
  for (size_t i = 1; i < codes.size(); ++i) {
    const double distance = std::abs(double{codes[i]} - double{multiple});
    const double least = std::abs(double{codes[best]} - double{multiple});
    if (distance < least ||
        (distance == least && std::abs(codes[i]) > std::abs(codes[best]))) {
      best = i;
    }
  }
  return static_cast<uint8_t>(best);
}

// Returns the bytes that StoreState promises, computed element by element.
std::vector<std::byte> ReferenceBytes(SlotKind kind, std::span<const float> values) {
  std::vector<std::byte> bytes;
  for (size_t first = 0; first < values.size(); first += kStateRun) {
    const auto run = values.subspan(first, std::min(kStateRun, values.size() - first));
    const auto has_code = [kind](float x) {
      return std::isfinite(x) && (kind == SlotKind::kSigned || x >= 0);
    };
    float scale = 0;
    for (const float x : run) {
      if (!has_code(x)) continue;
      if (std::abs(x) > std::abs(scale) || (x > 0 && x == -scale)) scale = x;
    }
    if (std::abs(scale) < std::numeric_limits<float>::min()) scale = 0;
    const auto scale_bytes = std::as_bytes(std::span(&scale, 1));
    bytes.insert(bytes.end(), scale_bytes.begin(), scale_bytes.end());
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (const float x : run) {
      const uint8_t nearest = NearestCode(kind, has_code(x) ? x * inverse : 0);
      const bool is_small = kind == SlotKind::kUnsigned && has_code(x) && x > 0;
      const bool is_raised = is_small && scale != 0 && nearest == 0;
      bytes.push_back(std::byte{is_raised ? uint8_t{1} : nearest});
    }
  }
  return bytes;
}

TEST(StateStorage, CodesAreTheDynamicMapOfThePaper) {
  // Sorted, as the paper and bitsandbytes (create_dynamic_map) list them.
  for (const SlotKind kind : kCoded) {
    const auto codes = CodeValues(kind);
    std::vector<float> sorted(codes.begin(), codes.end());
    std::ranges::sort(sorted);
    EXPECT_EQ(std::ranges::adjacent_find(sorted), sorted.end());
    EXPECT_EQ(sorted.back(), 1.0f);
    EXPECT_EQ(codes[0], 0.0f);
    if (kind == SlotKind::kSigned) {
      EXPECT_EQ(sorted[127], 0.0f);
      EXPECT_FLOAT_EQ(sorted[128], 5.5e-7f);
      EXPECT_FLOAT_EQ(sorted[129], 3.25e-6f);
      EXPECT_FLOAT_EQ(sorted[130], 7.75e-6f);
      EXPECT_FLOAT_EQ(sorted[0], -0.99296875f);
      EXPECT_FLOAT_EQ(sorted[254], 0.99296875f);
      for (int i = 1; i < 128; ++i) EXPECT_EQ(sorted[127 - i], -sorted[127 + i]);
    } else {
      EXPECT_EQ(sorted[0], 0.0f);
      EXPECT_FLOAT_EQ(sorted[1], 3.25e-7f);
      EXPECT_FLOAT_EQ(sorted[2], 7.75e-7f);
      EXPECT_FLOAT_EQ(sorted[3], 2.125e-6f);
      EXPECT_FLOAT_EQ(sorted[254], 0.996484375f);
    }
  }
}

TEST(StateStorage, ChoosesTheNearestCodeForEveryMagnitude) {
  for (const SlotKind kind : kCoded) {
    // The first element fixes the scale to 1.
    std::vector<float> values = {1.0f};
    for (const float code : CodeValues(kind)) {
      for (const float other : CodeValues(kind)) {
        const auto middle = static_cast<float>((double{code} + double{other}) / 2);
        if (NearestCode(kind, middle) != NearestCode(kind, code)) continue;
        for (const float near :
             {middle, std::nextafter(middle, 2.0f), std::nextafter(middle, -2.0f)}) {
          if (values.size() % kStateRun == 0) values.push_back(1.0f);
          values.push_back(near);
        }
        break;
      }
    }
    // Bit patterns of numbers below 1, evenly spread.
    for (uint32_t bits = 0; bits < 0x3f800000; bits += 40'961) {
      if (values.size() % kStateRun == 0) values.push_back(1.0f);
      values.push_back(std::bit_cast<float>(bits));
      if (values.size() % kStateRun == 0) values.push_back(1.0f);
      values.push_back(-std::bit_cast<float>(bits));
    }
    std::vector<std::byte> memory(StateBytes(StateType::kInt8, values.size()));
    StoreState({StateType::kInt8, kind, memory.data()}, 0, values, {});
    EXPECT_EQ(memory, ReferenceBytes(kind, values));
  }
}

TEST(StateStorage, TheBordersBetweenNeighbouringCodesAreExact) {
  for (const SlotKind kind : kCoded) {
    std::vector<float> sorted(CodeValues(kind).begin(), CodeValues(kind).end());
    std::ranges::sort(sorted);
    for (size_t i = 0; i + 1 < sorted.size(); ++i) {
      const auto middle = static_cast<float>((double{sorted[i]} + sorted[i + 1]) / 2);
      const float values[] = {1.0f, middle, std::nextafter(middle, 2.0f),
                              std::nextafter(middle, -2.0f)};
      std::byte memory[8];
      StoreState({StateType::kInt8, kind, memory}, 0, values, {});
      const std::vector<std::byte> want = ReferenceBytes(kind, values);
      ASSERT_TRUE(std::ranges::equal(memory, want)) << sorted[i] << " " << sorted[i + 1];
    }
  }
}

// Compares kernels of every instruction-set level with the reference, with tails.
TEST(StateStorage, EqualsTheReferenceForEveryLength) {
  for (const SlotKind kind : kCoded) {
    for (const size_t n : {1, 2, 63, 64, 255, 256, 257, 511, 1000, 4095, 4096}) {
      std::vector<float> values = Normals(n, static_cast<uint32_t>(n));
      for (size_t i = 0; i < n; ++i) {
        if (kind == SlotKind::kUnsigned) values[i] *= values[i];
        values[i] *= std::pow(10.0f, -static_cast<float>(i % 9));
      }
      std::vector<std::byte> memory(StateBytes(StateType::kInt8, n) + 1, std::byte{0x5a});
      StoreState({StateType::kInt8, kind, memory.data()}, 0, values, {});
      EXPECT_EQ(memory.back(), std::byte{0x5a}) << "written beyond the end";
      memory.pop_back();
      const std::vector<std::byte> want = ReferenceBytes(kind, values);
      ASSERT_EQ(memory, want) << n;
      std::vector<float> loaded(n);
      LoadState({StateType::kInt8, kind, memory.data()}, 0, loaded);
      for (size_t i = 0; i < n; ++i) {
        const size_t run = i / kStateRun * (kStateRun + 4);
        float scale;
        std::memcpy(&scale, want.data() + run, 4);
        const auto byte = static_cast<uint8_t>(want[run + 4 + i % kStateRun]);
        ASSERT_EQ(loaded[i], scale * CodeValues(kind)[byte]) << i;
      }
    }
  }
}

TEST(StateStorage, StripsAndAddressesDoNotMatter) {
  for (const StateType type : {StateType::kF32, StateType::kBf16, StateType::kInt8}) {
    const std::vector<float> values = Normals(10'000, 3);
    std::vector<std::byte> whole(StateBytes(type, values.size()));
    const StateContext context = {.seed = 5, .update = 6, .tensor = 7, .slot = 1};
    StoreState({type, SlotKind::kSigned, whole.data()}, 0, values, context);
    for (const size_t strip : {size_t{256}, size_t{768}, size_t{4096}}) {
      std::vector<std::byte> memory(whole.size() + 1);  // at an odd address
      std::vector<float> loaded(values.size());
      for (size_t first = 0; first < values.size(); first += strip) {
        const size_t n = std::min(strip, values.size() - first);
        StoreState(
            {type, SlotKind::kSigned, memory.data() + 1}, first,
            std::span(values).subspan(first, n),
            {.seed = 5, .update = 6, .tensor = 7, .slot = 1, .first_element = first});
        LoadState({type, SlotKind::kSigned, memory.data() + 1}, first,
                  std::span(loaded).subspan(first, n));
      }
      EXPECT_TRUE(std::equal(whole.begin(), whole.end(), memory.begin() + 1)) << strip;
      std::vector<float> want(values.size());
      LoadState({type, SlotKind::kSigned, whole.data()}, 0, want);
      ExpectSameBits(loaded, want);
    }
  }
}

TEST(StateStorage, ErrorOfNormalNumbersIsThatOfBlockWiseDynamicQuantisation) {
  const std::vector<float> values = Normals(1 << 20, 5);
  const std::vector<float> loaded =
      RoundTrip(StateType::kInt8, SlotKind::kSigned, values);
  double error = 0;
  double relative = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double difference = std::abs(double{loaded[i]} - double{values[i]});
    error += difference;
    relative += difference / std::abs(double{values[i]});
  }
  EXPECT_LT(error / static_cast<double>(values.size()), 0.011);
  EXPECT_LT(relative / static_cast<double>(values.size()), 0.018);
}

TEST(StateStorage, StoringWhatWasLoadedChangesNothing) {
  for (const StateType type : {StateType::kF32, StateType::kBf16, StateType::kInt8}) {
    for (const SlotKind kind : kCoded) {
      std::vector<float> values = Normals(4096, 6);
      for (float& value : values) {
        if (kind == SlotKind::kUnsigned) value = value * value;
      }
      const std::vector<float> once = RoundTrip(type, kind, values);
      ExpectSameBits(RoundTrip(type, kind, once), once);
    }
  }
}

TEST(StateStorage, AllCodesSurvive) {
  for (const SlotKind kind : kCoded) {
    for (const float scale : {1.0f, 3e-5f, 7.7e20f}) {
      std::vector<float> values(CodeValues(kind).begin(), CodeValues(kind).end());
      for (float& value : values) value *= scale;
      ExpectSameBits(RoundTrip(StateType::kInt8, kind, values), values);
    }
  }
}

TEST(StateStorage, TheLargestElementOfARunIsExactWhateverItsSign) {
  for (const float largest : {123.456f, -123.456f, -3e38f, 1.3e-38f}) {
    std::vector<float> values(300, largest / 3);
    values[77] = largest;
    const std::vector<float> loaded =
        RoundTrip(StateType::kInt8, SlotKind::kSigned, values);
    EXPECT_EQ(loaded[77], largest);
    EXPECT_NEAR(loaded[78] / values[78], 1, 0.03);
  }
}

TEST(StateStorage, OfTwoLargestElementsThePositiveOneIsExact) {
  const std::vector<float> values = {-2, 1, 2, -2};
  const std::vector<float> loaded =
      RoundTrip(StateType::kInt8, SlotKind::kSigned, values);
  EXPECT_EQ(loaded[2], 2.0f);
  EXPECT_NEAR(loaded[0], -2, 0.015);
  EXPECT_EQ(loaded[0], loaded[3]);
}

TEST(StateStorage, ZeroesAreZeroesAndZeroedMemoryIsZero) {
  const std::vector<float> zeros(300, 0.0f);
  for (const StateType type : {StateType::kF32, StateType::kBf16, StateType::kInt8}) {
    for (const SlotKind kind : kCoded) {
      ExpectSameBits(RoundTrip(type, kind, zeros), zeros);
      std::vector<std::byte> fresh(StateBytes(type, 300));
      std::vector<float> loaded(300, 1.0f);
      LoadState({type, kind, fresh.data()}, 0, loaded);
      ExpectSameBits(loaded, zeros);
      // The same value among other numbers.
      std::vector<float> mixed = Normals(300, 9);
      for (float& value : mixed) value = std::abs(value);
      mixed[100] = 0;
      EXPECT_EQ(RoundTrip(type, kind, mixed)[100], 0.0f);
    }
  }
}

TEST(StateStorage, NonFiniteElementsBecomeZeroAndDoNotPoisonTheirNeighbours) {
  for (const SlotKind kind : kCoded) {
    std::vector<float> clean = Normals(512, 10);
    for (float& value : clean) value = std::abs(value);
    for (const size_t i : {5u, 6u, 7u, 300u}) clean[i] = 0;
    std::vector<float> values = clean;
    values[5] = kNan;
    values[6] = kInfinity;
    values[7] = -kInfinity;
    values[300] = -kNan;
    ExpectSameBits(RoundTrip(StateType::kInt8, kind, values),
                   RoundTrip(StateType::kInt8, kind, clean));
    const std::vector<float> none(256, kNan);
    ExpectSameBits(RoundTrip(StateType::kInt8, kind, none),
                   std::vector<float>(256, 0.0f));
  }
}

TEST(StateStorage, NegativeNumbersInAnUnsignedSlotBecomeZero) {
  const std::vector<float> loaded = RoundTrip(StateType::kInt8, SlotKind::kUnsigned,
                                              std::vector<float>{-5, 1, 0.5, -0.0f});
  EXPECT_EQ(loaded[0], 0.0f);
  EXPECT_EQ(loaded[1], 1.0f);
  EXPECT_NEAR(loaded[2], 0.5, 0.004);
  EXPECT_EQ(loaded[3], 0.0f);
}

TEST(StateStorage, OnlyZeroIsZeroInAnUnsignedSlot) {
  const std::vector<float> values = {1, 1e-6f, 1e-7f, 1e-20f, 1e-45f, 0, -0.0f};
  const std::vector<float> loaded =
      RoundTrip(StateType::kInt8, SlotKind::kUnsigned, values);
  const std::vector<float> want = {1, 7.75e-7f, 3.25e-7f, 3.25e-7f, 3.25e-7f, 0, 0};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_FLOAT_EQ(loaded[i], want[i]) << i;
  // Signed slots round to the nearest code, which may be 0.
  EXPECT_EQ(RoundTrip(StateType::kInt8, SlotKind::kSigned, values)[2], 0.0f);
}

TEST(StateStorage, RunsOfDenormalsBecomeZero) {
  const std::vector<float> loaded = RoundTrip(StateType::kInt8, SlotKind::kSigned,
                                              std::vector<float>{1e-40f, -1.1e-38f, 0});
  ExpectSameBits(loaded, std::vector<float>{0, 0, 0});
}

TEST(StateStorage, Bf16KeepsNonFiniteAndTakesANeighbourForOthers) {
  std::vector<float> values = Normals(1000, 11);
  values[3] = kNan;
  values[4] = -kInfinity;
  const std::vector<float> loaded =
      RoundTrip(StateType::kBf16, SlotKind::kSigned, values);
  EXPECT_TRUE(std::isnan(loaded[3]));
  EXPECT_EQ(loaded[4], -kInfinity);
  size_t up = 0;
  for (size_t i = 5; i < values.size(); ++i) {
    const float below =
        FloatFromBf16(static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16));
    const float above = FloatFromBf16(
        static_cast<uint16_t>((std::bit_cast<uint32_t>(values[i]) >> 16) + 1));
    EXPECT_TRUE(loaded[i] == below || loaded[i] == above) << i;
    up += loaded[i] == above ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(up), 500, 80);
}

TEST(StateStorage, Bf16IsRightInTheMeanOfSlotsUpdatesAndElements) {
  // A quarter of the way from 1 to the next BF16.
  const std::vector<float> values(4096, 1 + 0x1p-9f);
  std::vector<float> first;
  for (const uint32_t slot : {0u, 1u}) {
    for (uint64_t update = 0; update < 4; ++update) {
      std::vector<std::byte> memory(StateBytes(StateType::kBf16, values.size()));
      const StoredSlot stored = {StateType::kBf16, SlotKind::kUnsigned, memory.data()};
      StoreState(stored, 0, values, {.seed = 1, .update = update, .slot = slot});
      std::vector<float> loaded(values.size());
      LoadState(stored, 0, loaded);
      double sum = 0;
      for (const float value : loaded) sum += double{value} - 1;
      // The standard deviation of the mean is 5.3e-5.
      EXPECT_NEAR(sum / static_cast<double>(values.size()), 0x1p-9, 3e-4);
      if (first.empty()) first = loaded;
      EXPECT_EQ(loaded == first, slot == 0 && update == 0);
    }
  }
}

TEST(StateStorage, AverageOfWeightsAndSmallTensorsStayFp32) {
  EXPECT_EQ(EffectiveType(StateType::kInt8, SlotKind::kSigned, 4096), StateType::kInt8);
  EXPECT_EQ(EffectiveType(StateType::kInt8, SlotKind::kUnsigned, 1 << 30),
            StateType::kInt8);
  EXPECT_EQ(EffectiveType(StateType::kBf16, SlotKind::kSigned, 4096), StateType::kBf16);
  EXPECT_EQ(EffectiveType(StateType::kF32, SlotKind::kSigned, 4096), StateType::kF32);
  EXPECT_EQ(EffectiveType(StateType::kInt8, SlotKind::kSigned, 4095), StateType::kF32);
  EXPECT_EQ(EffectiveType(StateType::kBf16, SlotKind::kSigned, 4095), StateType::kF32);
  EXPECT_EQ(EffectiveType(StateType::kInt8, SlotKind::kWeights, 1 << 30),
            StateType::kF32);
}

TEST(StateStorage, BothMomentsTakeTwoBytesAndAScaleInAHundredAndTwentyEight) {
  EXPECT_EQ(StateBytes(StateType::kInt8, 1 << 20), (1u << 20) + (1u << 14));
  EXPECT_EQ(StateBytes(StateType::kInt8, 257), 265u);
  EXPECT_EQ(StateBytes(StateType::kInt8, 0), 0u);
  EXPECT_EQ(StateBytes(StateType::kBf16, 257), 514u);
  EXPECT_EQ(StateBytes(StateType::kF32, 257), 1028u);
}

// Checkpoints contain these bytes.
TEST(StateStorage, BytesNeverChange) {
  std::vector<float> values(4096);
  for (uint32_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int32_t>(i * 2654435761u)) * 0x1p-31f;
  }
  std::vector<std::byte> memory(StateBytes(StateType::kInt8, values.size()));
  StoreState({StateType::kInt8, SlotKind::kSigned, memory.data()}, 0, values, {});
  EXPECT_EQ(Crc32c(memory), Crc32c(ReferenceBytes(SlotKind::kSigned, values)));
  EXPECT_EQ(Crc32c(memory), 109496537u);
}

}  // namespace
}  // namespace syncline
