// The contract suite for codecs that encode each element on its own. A codec's own test
// instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Bf16, CodecContract, ::testing::Values(CodecCase{
//       .make = MakeBf16Codec,
//       .reference = [](float x, uint32_t) {
//         return FloatFromBf16(Bf16FromFloat(x)); }}));
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "comm/base/random.h"
#include "comm/codec/codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {

struct CodecCase {
  std::unique_ptr<Codec> (*make)();
  // Returns what decode(encode(x)) of one element must give, bit for bit. `random` holds
  // the random bits of that element.
  float (*reference)(float x, uint32_t random);
};

class CodecContract : public ::testing::TestWithParam<CodecCase> {
 protected:
  static std::vector<uint32_t> Sizes() {
    std::vector<uint32_t> sizes;
    for (uint32_t n = 0; n <= 257; ++n) sizes.push_back(n);
    sizes.push_back(65535);
    sizes.push_back(65536);
    return sizes;
  }

  // Magnitudes from denormal to overflow of both signs, mixed with zeros and infinities.
  static std::vector<float> Values(uint32_t n) {
    std::mt19937 random(n + 1);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-149, 127);
    std::vector<float> values(n);
    for (uint32_t i = 0; i < n; ++i) {
      values[i] =
          i % 3 == 0 ? normal(random) : std::ldexp(normal(random), exponent(random));
      if (i % 61 == 60) values[i] = std::copysign(0.0f, values[i]);
      if (i % 97 == 96) values[i] = std::copysign(kInfinity, values[i]);
    }
    return values;
  }

  std::vector<std::byte> Encode(std::vector<float>& values) const {
    std::vector<std::byte> bytes(
        codec_->MaxEncodedBytes(static_cast<uint32_t>(values.size())));
    bytes.resize(codec_->Encode(values, {}, kContext, bytes));
    return bytes;
  }

  // Compares bits, so that -0, infinities and NaNs count too.
  static void ExpectSameBits(std::span<const float> got, std::span<const float> want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
          << "element " << i << ": " << got[i] << " instead of " << want[i];
    }
  }

  static float Reference(float x, uint32_t i) {
    static constexpr RandomBits kRandom(kContext.seed, kContext.step, kContext.tensor,
                                        kContext.first_element);
    return GetParam().reference(x, kRandom.At(i));
  }

  static constexpr EncodeContext kContext = {
      .seed = 7, .step = 11, .tensor = 3, .first_element = 131072};
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::unique_ptr<Codec> codec_ = GetParam().make();
};

TEST_P(CodecContract, HasAnIdAndAName) {
  EXPECT_NE(static_cast<int>(codec_->id()), 0);
  EXPECT_FALSE(codec_->name().empty());
}

TEST_P(CodecContract, RoundTripGivesTheReferenceForEverySize) {
  for (const uint32_t n : Sizes()) {
    std::vector<float> values = Values(n);
    const std::vector<float> original = values;
    const std::vector<std::byte> bytes = Encode(values);
    ExpectSameBits(values, original);
    ASSERT_LE(bytes.size(), codec_->MaxEncodedBytes(n));
    ASSERT_TRUE(codec_->Validate(bytes, n).ok()) << n;
    std::vector<float> decoded(n, -1.0f);
    ASSERT_TRUE(codec_->Decode(bytes, decoded).ok()) << n;
    std::vector<float> want(n);
    for (uint32_t i = 0; i < n; ++i) want[i] = Reference(original[i], i);
    ExpectSameBits(decoded, want);
  }
}

TEST_P(CodecContract, TheResidualIsWhatDecodingLacks) {
  for (const uint32_t n : {0u, 1u, 63u, 257u, 65536u}) {
    std::vector<float> values(n);
    std::mt19937 random(n);
    for (float& value : values) value = std::normal_distribution<float>(0, 2)(random);
    std::vector<std::byte> bytes(codec_->MaxEncodedBytes(n));
    std::vector<float> residual(n, -1.0f);
    ASSERT_EQ(codec_->Encode(values, residual, kContext, bytes), bytes.size());
    std::vector<float> decoded(n);
    ASSERT_TRUE(codec_->Decode(bytes, decoded).ok());
    std::vector<float> want(n);
    for (uint32_t i = 0; i < n; ++i) want[i] = values[i] - decoded[i];
    ExpectSameBits(residual, want);
    // The residual may replace the values.
    codec_->Encode(values, values, kContext, bytes);
    ExpectSameBits(values, want);
  }
}

TEST_P(CodecContract, DecodeAddEqualsTheScalarLoopBitForBit) {
  for (const uint32_t n : Sizes()) {
    for (const float weight : {1.0f, 0.25f, 0.3f, -3.0f}) {
      std::vector<float> values = Values(n);
      const std::vector<float> original = values;
      const std::vector<std::byte> bytes = Encode(values);
      std::vector<float> accumulator(n, 0.7f);
      ASSERT_TRUE(codec_->DecodeAdd(bytes, weight, accumulator).ok());
      std::vector<float> want(n);
      for (uint32_t i = 0; i < n; ++i) {
        const float product = weight * Reference(original[i], i);
        want[i] = 0.7f + product;
      }
      ExpectSameBits(accumulator, want);
    }
  }
}

TEST_P(CodecContract, DecodeAddAllGivesTheBitsOfOneAfterAnother) {
  for (const uint32_t n : {0u, 1u, 7u, 64u, 65u, 1000u}) {
    for (size_t count = 0; count <= 17; ++count) {
      std::vector<std::vector<std::byte>> encodings;
      std::vector<WeightedBytes> parts;
      for (size_t k = 0; k < count; ++k) {
        std::vector<float> values = Values(n);
        for (float& value : values) value *= 1.0f / static_cast<float>(k + 1);
        encodings.push_back(Encode(values));
      }
      std::vector<float> want(n, 0.7f);
      for (size_t k = 0; k < count; ++k) {
        const float weight = 0.3f * static_cast<float>(k) - 1;
        parts.push_back({encodings[k], weight});
        ASSERT_TRUE(codec_->DecodeAdd(encodings[k], weight, want).ok());
      }
      std::vector<float> got(n, 0.7f);
      ASSERT_TRUE(codec_->DecodeAddAll(parts, got).ok());
      ExpectSameBits(got, want);
    }
  }
}

TEST_P(CodecContract, DecodeAddAllAddsNothingWhenOnePartIsMalformed) {
  std::vector<float> values = Values(64);
  const std::vector<std::byte> bytes = Encode(values);
  const ByteView all(bytes);
  const std::vector<WeightedBytes> parts = {{all, 1}, {all, 1}, {all.first(3), 1}};
  std::vector<float> accumulator(64, 3.5f);
  EXPECT_EQ(codec_->DecodeAddAll(parts, accumulator).code(),
            absl::StatusCode::kInvalidArgument);
  ExpectSameBits(accumulator, std::vector<float>(64, 3.5f));
}

TEST_P(CodecContract, WritesNothingBeyondWhatItReturns) {
  for (const uint32_t n : {0u, 1u, 31u, 64u, 65u}) {
    std::vector<float> values = Values(n);
    std::vector<std::byte> bytes(codec_->MaxEncodedBytes(n) + 64, std::byte{0x5a});
    const size_t used = codec_->Encode(
        values, {}, kContext, std::span(bytes).first(codec_->MaxEncodedBytes(n)));
    for (size_t i = used; i < bytes.size(); ++i)
      ASSERT_EQ(bytes[i], std::byte{0x5a}) << i;
  }
}

TEST_P(CodecContract, RefusesWrongLengthsAndLeavesTheAccumulatorAlone) {
  for (const uint32_t n : {1u, 2u, 64u, 65u, 65536u}) {
    std::vector<float> values = Values(n);
    std::vector<std::byte> bytes = Encode(values);
    std::vector<std::vector<std::byte>> wrong = {{}, bytes, bytes, bytes};
    wrong[1].pop_back();
    wrong[2].push_back(std::byte{0});
    wrong[3].resize(2 * bytes.size() + 64);
    for (const std::vector<std::byte>& bad : wrong) {
      std::vector<float> accumulator(n, 3.5f);
      const std::vector<float> before = accumulator;
      EXPECT_EQ(codec_->DecodeAdd(bad, 1.0f, accumulator).code(),
                absl::StatusCode::kInvalidArgument);
      ExpectSameBits(accumulator, before);
      EXPECT_EQ(codec_->Decode(bad, accumulator).code(),
                absl::StatusCode::kInvalidArgument);
      ExpectSameBits(accumulator, before);
      EXPECT_EQ(codec_->Validate(bad, n).code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST_P(CodecContract, AcceptsBytesAtAnyAddress) {
  std::vector<float> values = Values(300);
  const std::vector<std::byte> bytes = Encode(values);
  std::vector<float> aligned(300);
  ASSERT_TRUE(codec_->Decode(bytes, aligned).ok());
  for (size_t offset = 1; offset < 8; ++offset) {
    std::vector<std::byte> shifted(bytes.size() + offset);
    std::memcpy(shifted.data() + offset, bytes.data(), bytes.size());
    std::vector<float> decoded(300);
    std::vector<float> sum(300, 0.0f);
    ASSERT_TRUE(codec_->Decode(std::span(shifted).subspan(offset), decoded).ok());
    ExpectSameBits(decoded, aligned);
    ASSERT_TRUE(codec_->DecodeAdd(std::span(shifted).subspan(offset), 1.0f, sum).ok());
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], aligned[i]);
  }
}

// Servers encode strip by strip (dense.h).
TEST_P(CodecContract, PiecesOfATileGiveTheBytesOfTheWhole) {
  std::vector<float> values = Values(5000);
  const std::vector<std::byte> whole = Encode(values);
  const size_t width = codec_->MaxEncodedBytes(1);
  for (const uint32_t piece : {1u, 63u, 64u, 333u, 4096u}) {
    std::vector<std::byte> bytes(whole.size());
    for (uint32_t first = 0; first < values.size(); first += piece) {
      EncodeContext context = kContext;
      context.first_element += first;
      const auto n = std::min<size_t>(piece, values.size() - first);
      codec_->Encode(std::span(values).subspan(first, n), {}, context,
                     std::span(bytes).subspan(first * width, n * width));
    }
    ASSERT_EQ(bytes, whole) << piece;
  }
}

TEST_P(CodecContract, NansAndInfinitiesArriveAsSuch) {
  // A lost NaN would hide a diverged worker.
  std::vector<float> values(67, 1.0f);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[33] =
      std::bit_cast<float>(0x7f800001u);  // signalling, all payload in the lowest bit
  values[65] = std::bit_cast<float>(0xffffffffu);
  values[66] = -kInfinity;
  const std::vector<std::byte> bytes = Encode(values);
  std::vector<float> sum(67, 0.0f);
  ASSERT_TRUE(codec_->DecodeAdd(bytes, 0.5f, sum).ok());
  for (size_t i = 0; i < 66; ++i)
    EXPECT_EQ(std::isnan(sum[i]), i == 3 || i == 33 || i == 65) << i;
  EXPECT_EQ(sum[66], -kInfinity);
}

}  // namespace syncline
