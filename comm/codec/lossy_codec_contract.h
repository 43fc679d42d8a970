// The contract suite for every codec, lossy ones in particular, as parameterised tests.
// Its demands follow from Codec::traits(). Only the exact decoded bits are left to the
// codec's own test, which also instantiates the suite:
//
//   INSTANTIATE_TEST_SUITE_P(
//       Sign, LossyCodecContract,
//       ::testing::Values(LossyCodecCase{"Mean", [] { return MakeSignCodec({}); }}),
//       LossyCodecCaseName);
//
// All inputs and random draws are fixed, so the results are repeatable.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "comm/base/tiling.h"
#include "comm/codec/codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {

struct LossyCodecCase {
  std::string name = {};  // letters and digits
  std::function<std::unique_ptr<Codec>()> make = nullptr;
};

inline std::string LossyCodecCaseName(
    const ::testing::TestParamInfo<LossyCodecCase>& info) {
  return info.param.name;
}
inline void PrintTo(const LossyCodecCase& lossy, std::ostream* out) {
  *out << lossy.name;
}

class LossyCodecContract : public ::testing::TestWithParam<LossyCodecCase> {
 protected:
  using Floats = std::vector<float>;
  using Bytes = std::vector<std::byte>;

  static std::vector<uint32_t> Sizes() {
    std::vector<uint32_t> sizes(258);
    std::iota(sizes.begin(), sizes.end(), 0u);
    sizes.insert(sizes.end(), {65535, 65536});
    return sizes;
  }

  enum class Shape { kGaussian, kLaplace, kHeavyTailed, kSparse };
  static constexpr Shape kShapes[] = {Shape::kGaussian, Shape::kLaplace,
                                      Shape::kHeavyTailed, Shape::kSparse};

  // Values of several distributions: typical gradients, and the worst cases for a scale
  // that a block shares.
  static Floats Values(Shape shape, uint32_t n, uint32_t seed = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::exponential_distribution<float> exponential;
    std::bernoulli_distribution kept(0.05);
    Floats values(n);
    for (float& value : values) {
      value = normal(random);
      if (shape == Shape::kLaplace) value = std::copysign(exponential(random), value);
      if (shape == Shape::kHeavyTailed) value *= std::exp(2 * normal(random));
      if (shape == Shape::kSparse && !kept(random)) value = 0;
    }
    return values;
  }

  static constexpr EncodeContext ContextOfStep(uint64_t step) {
    return {.seed = 7, .step = step, .tensor = 3, .first_element = 131072};
  }

  // Encodes into memory of exactly the right size, so that AddressSanitizer sees every
  // byte written beyond it.
  Bytes Encode(std::span<const float> values, std::span<float> residual = {},
               uint64_t step = 11) const {
    Bytes room(codec_->MaxEncodedBytes(static_cast<uint32_t>(values.size())));
    const size_t used = codec_->Encode(values, residual, ContextOfStep(step), room);
    EXPECT_LE(used, room.size());
    return First(used, room);
  }

  static Bytes First(size_t n, const Bytes& bytes) {
    return {bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n)};
  }

  Floats Decode(const Bytes& bytes, size_t n) const {
    Floats decoded(n, -1.0f);
    EXPECT_TRUE(codec_->Decode(bytes, decoded).ok()) << n;
    return decoded;
  }

  // Compares bits, so that -0 counts too.
  static void ExpectSameBits(std::span<const float> got, std::span<const float> want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
          << "element " << i << ": " << got[i] << " instead of " << want[i];
    }
  }

  static double SquaredNorm(std::span<const float> x) {
    double sum = 0;
    for (const float value : x) sum += double{value} * value;
    return sum;
  }

  // Checks that all three ways to read `bytes` agree on whether they are an encoding of
  // `n` values, and that a refusal touches nothing. Returns whether they accept.
  bool IsAccepted(const Bytes& bytes, uint32_t n) const {
    const Bytes exact(bytes.begin(), bytes.end());
    const absl::Status checked = codec_->Validate(exact, n);
    for (const bool weighted : {false, true}) {
      Floats values(n, 3.5f);
      const absl::Status status = weighted ? codec_->DecodeAdd(exact, 0.5f, values)
                                           : codec_->Decode(exact, values);
      EXPECT_EQ(status.ok(), checked.ok()) << status << " but " << checked;
      if (!status.ok()) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        ExpectSameBits(values, Floats(n, 3.5f));
      }
    }
    if (checked.ok()) {
      EXPECT_LE(codec_->Nonzeros(exact, n), n);
    }
    return checked.ok();
  }

  // Whether error feedback keeps the residual bounded.
  bool ConvergesWithErrorFeedback() const {
    const CodecTraits traits = codec_->traits();
    return traits.unbiased ? traits.variance < 1 : traits.contraction > 0;
  }

  const std::unique_ptr<Codec> codec_ = GetParam().make();
};

TEST_P(LossyCodecContract, HasAnIdANameAndTraitsThatFitTogether) {
  EXPECT_NE(static_cast<int>(codec_->id()), 0);
  EXPECT_FALSE(codec_->name().empty());
  const CodecTraits traits = codec_->traits();
  EXPECT_GE(traits.contraction, 0);
  EXPECT_LE(traits.contraction, 1);
  EXPECT_GE(traits.variance, 0);
  EXPECT_GE(traits.strip, 1u);
  EXPECT_LE(traits.strip, kTileElements);
}

TEST_P(LossyCodecContract, AcceptsWhatItWroteForEverySize) {
  for (const uint32_t n : Sizes()) {
    const Bytes bytes = Encode(Values(Shape::kGaussian, n, n));
    ASSERT_TRUE(IsAccepted(bytes, n)) << n << " " << codec_->Validate(bytes, n);
  }
}

TEST_P(LossyCodecContract, TheResidualIsWhatDecodingLacks) {
  for (const uint32_t n : Sizes()) {
    Floats values = Values(Shape::kHeavyTailed, n, n);
    Floats residual(n, -1.0f);
    const Bytes bytes = Encode(values, residual);
    const Floats decoded = Decode(bytes, n);
    Floats want(n);
    for (uint32_t i = 0; i < n; ++i) want[i] = values[i] - decoded[i];
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(residual, want)) << n;
    ASSERT_EQ(Encode(values, values), bytes) << "in place, " << n;
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(values, want)) << "in place, " << n;
  }
}

TEST_P(LossyCodecContract, LeavesTheValuesAlone) {
  const Floats values = Values(Shape::kLaplace, 5000);
  const Floats before(values.begin(), values.end());
  Floats residual(values.size());
  const Bytes bytes = Encode(values);
  ExpectSameBits(values, before);
  EXPECT_EQ(Encode(values, residual), bytes);
  ExpectSameBits(values, before);
}

TEST_P(LossyCodecContract, TheSameContextGivesTheSameBytes) {
  const Floats values = Values(Shape::kGaussian, 3000);
  EXPECT_EQ(Encode(values), Encode(values));
  EXPECT_EQ(Encode(values), [&] {
    const std::unique_ptr<Codec> another = GetParam().make();
    Bytes room(another->MaxEncodedBytes(3000));
    return First(another->Encode(values, {}, ContextOfStep(11), room), room);
  }());
}

TEST_P(LossyCodecContract, DecodeAddAddsTheWeightedValues) {
  for (const uint32_t n : Sizes()) {
    const Bytes bytes = Encode(Values(Shape::kLaplace, n, n));
    const Floats decoded = Decode(bytes, n);
    for (const float weight : {1.0f, 0.3f, -3.0f}) {
      Floats sum(n, 0.0f);
      ASSERT_TRUE(codec_->DecodeAdd(bytes, weight, sum).ok());
      for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], weight * decoded[i]) << i;
      Floats onto(n, 0.7f);
      ASSERT_TRUE(codec_->DecodeAdd(bytes, weight, onto).ok());
      for (uint32_t i = 0; i < n; ++i) {
        const float product = weight * decoded[i];
        ASSERT_EQ(onto[i], 0.7f + product) << i;
      }
    }
  }
}

TEST_P(LossyCodecContract, DecodeAddAllGivesTheBitsOfOneAfterAnother) {
  for (const uint32_t n : {0u, 1u, 7u, 64u, 65u, 1000u, 9001u}) {
    std::vector<Bytes> encodings;
    for (uint32_t k = 0; k < 17; ++k) {
      encodings.push_back(Encode(Values(kShapes[k % 4], n, k)));
    }
    std::vector<WeightedBytes> parts;
    Floats want(n, 0.7f);
    for (size_t count = 0; count <= encodings.size(); ++count) {
      Floats got(n, 0.7f);
      ASSERT_TRUE(codec_->DecodeAddAll(parts, got).ok());
      ASSERT_NO_FATAL_FAILURE(ExpectSameBits(got, want)) << count;
      if (count == encodings.size()) break;
      const float weight = 0.3f * static_cast<float>(count) - 1;
      parts.push_back({encodings[count], weight});
      ASSERT_TRUE(codec_->DecodeAdd(encodings[count], weight, want).ok());
    }
  }
}

TEST_P(LossyCodecContract, DecodeAddAllAddsNothingWhenOnePartIsMalformed) {
  const Bytes bytes = Encode(Values(Shape::kGaussian, 640));
  const ByteView all(bytes);
  const std::vector<WeightedBytes> parts = {{all, 1}, {all, 1}, {all.first(3), 1}};
  Floats accumulator(640, 3.5f);
  EXPECT_EQ(codec_->DecodeAddAll(parts, accumulator).code(),
            absl::StatusCode::kInvalidArgument);
  ExpectSameBits(accumulator, Floats(640, 3.5f));
}

TEST_P(LossyCodecContract, WritesNothingBeyondItsBound) {
  for (const uint32_t n : {0u, 1u, 31u, 64u, 65u, 4097u}) {
    const Floats values = Values(Shape::kGaussian, n, n);
    const size_t bound = codec_->MaxEncodedBytes(n);
    Bytes bytes(bound + 64, std::byte{0x5a});
    const size_t used =
        codec_->Encode(values, {}, ContextOfStep(11), std::span(bytes).first(bound));
    ASSERT_LE(used, bound);
    for (size_t i = bound; i < bytes.size(); ++i) {
      ASSERT_EQ(bytes[i], std::byte{0x5a}) << i;
    }
  }
}

TEST_P(LossyCodecContract, ReadsBytesAtAnyAddress) {
  const Bytes bytes = Encode(Values(Shape::kGaussian, 3000));
  const Floats aligned = Decode(bytes, 3000);
  for (size_t offset = 1; offset < 8; ++offset) {
    Bytes shifted(offset);
    shifted.insert(shifted.end(), bytes.begin(), bytes.end());
    const ByteView view = std::span(shifted).subspan(offset);
    Floats decoded(3000);
    Floats sum(3000, 0.0f);
    ASSERT_TRUE(codec_->Decode(view, decoded).ok());
    ASSERT_TRUE(codec_->DecodeAdd(view, 1.0f, sum).ok());
    ExpectSameBits(decoded, aligned);
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], aligned[i]);
  }
}

TEST_P(LossyCodecContract, RefusesEveryTruncationAndExtension) {
  for (const uint32_t n : {1u, 2u, 63u, 64u, 300u}) {
    const Bytes bytes = Encode(Values(Shape::kGaussian, n, n));
    for (size_t length = 0; length < bytes.size(); ++length) {
      const Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
      EXPECT_FALSE(IsAccepted(cut, n)) << length << " of " << bytes.size();
    }
    for (const size_t more : {1u, 3u, 64u, 5000u}) {
      Bytes extended = bytes;
      extended.insert(extended.end(), more, std::byte{0});
      EXPECT_FALSE(IsAccepted(extended, n)) << more;
    }
  }
}

TEST_P(LossyCodecContract, DamagedBytesAreRefusedOrHarmless) {
  std::mt19937 random(99);
  for (const uint32_t n : {1u, 64u, 300u, 5000u}) {
    const Bytes bytes = Encode(Values(Shape::kGaussian, n, n));
    for (int trial = 0; trial < 1000; ++trial) {
      Bytes damaged = bytes;
      // Half of the trials damage the beginning, where the structure is.
      const size_t reach = trial % 2 == 0 ? bytes.size() : std::min<size_t>(24, n);
      for (int flips = 0; flips <= trial % 4; ++flips) {
        damaged[random() % std::min(reach, bytes.size())] =
            static_cast<std::byte>(random());
      }
      IsAccepted(damaged, n);
    }
    for (int trial = 0; trial < 300; ++trial) {
      Bytes noise(random() % (2 * bytes.size() + 2));
      for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
      IsAccepted(noise, n);
    }
  }
}

TEST_P(LossyCodecContract, ZerosStayZeros) {
  const Bytes bytes = Encode(Floats(5000, 0.0f));
  for (const float value : Decode(bytes, 5000)) ASSERT_EQ(value, 0.0f);
}

TEST_P(LossyCodecContract, ExtremeValuesKeepEverythingFinite) {
  for (const float size : {std::numeric_limits<float>::max(), 0x1p-126f, 0x1p-149f}) {
    Floats values(5000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 ? -size : size;
    Floats residual(values.size());
    const Bytes bytes = Encode(values, residual);
    ASSERT_TRUE(IsAccepted(bytes, 5000)) << size;
    for (const float value : Decode(bytes, 5000)) ASSERT_TRUE(std::isfinite(value));
    for (const float value : residual) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_P(LossyCodecContract, WithErrorFeedbackNothingIsLostForGood) {
  if (!ConvergesWithErrorFeedback()) return;  // not a contraction
  constexpr uint32_t kElements = 2000;
  for (const Shape shape : kShapes) {
    std::vector<double> sent(kElements);
    std::vector<double> given(kElements);
    Floats memory(kElements, 0.0f);
    for (uint32_t step = 0; step < 50; ++step) {
      const Floats gradient = Values(shape, kElements, step);
      for (uint32_t i = 0; i < kElements; ++i) {
        given[i] += gradient[i];
        memory[i] += gradient[i];
      }
      const Floats decoded = Decode(Encode(memory, memory, step), kElements);
      for (uint32_t i = 0; i < kElements; ++i) sent[i] += decoded[i];
    }
    double error = 0;
    double total = 0;
    for (uint32_t i = 0; i < kElements; ++i) {
      const double lost = given[i] - memory[i] - sent[i];
      error += lost * lost;
      total += given[i] * given[i];
    }
    EXPECT_LE(std::sqrt(error), 1e-5 * std::sqrt(total));
  }
}

TEST_P(LossyCodecContract, TheErrorIsWithinTheContraction) {
  const CodecTraits traits = codec_->traits();
  if (traits.contraction == 0) return;  // promises none
  for (const uint32_t n : {1u, 257u, 5000u, 65536u}) {
    for (const Shape shape : kShapes) {
      const Floats values = Values(shape, n);
      Floats residual(n);
      Encode(values, residual);
      EXPECT_LE(SquaredNorm(residual),
                (1 - traits.contraction) * (1 + 1e-9) * SquaredNorm(values))
          << n << " values of shape " << static_cast<int>(shape);
    }
    // All in one value: the worst case for a scale that many values share.
    Floats values(n, 0.0f);
    values[n / 2] = 3;
    Floats residual(n);
    Encode(values, residual);
    EXPECT_LE(SquaredNorm(residual), 9 * (1 - traits.contraction) * (1 + 1e-9)) << n;
  }
}

TEST_P(LossyCodecContract, TheErrorIsWithinTheVariance) {
  const CodecTraits traits = codec_->traits();
  if (traits.variance == 0) return;  // draws nothing
  constexpr int kDraws = 100;
  for (const uint32_t n : {1u, 300u, 5000u}) {
    for (const Shape shape : kShapes) {
      const Floats values = Values(shape, n);
      Floats residual(n);
      double error = 0;
      for (int draw = 0; draw < kDraws; ++draw) {
        Encode(values, residual, static_cast<uint64_t>(draw));
        error += SquaredNorm(residual) / kDraws;
      }
      // Few values mean few draws, whose mean scatters around a bound that may be
      // attained.
      EXPECT_LE(error, traits.variance * (n < 100 ? 1.5 : 1.05) * SquaredNorm(values))
          << n << " values of shape " << static_cast<int>(shape);
    }
  }
}

// Checks each element within 5 standard deviations, and sums over all elements, which
// reveal a common bias that no single element shows.
TEST_P(LossyCodecContract, TheMeanOfManyDrawsIsTheValue) {
  if (!codec_->traits().unbiased) return;  // biased
  constexpr uint32_t kElements = 300;
  constexpr int kDraws = 20'000;
  const Floats values = Values(Shape::kLaplace, kElements);
  std::vector<double> sums(kElements);
  std::vector<double> squares(kElements);
  Floats residual(kElements);
  for (int draw = 0; draw < kDraws; ++draw) {
    Encode(values, residual, static_cast<uint64_t>(draw));
    for (uint32_t i = 0; i < kElements; ++i) {
      sums[i] += residual[i];
      squares[i] += double{residual[i]} * residual[i];
    }
  }
  const double variance =
      std::accumulate(squares.begin(), squares.end(), 0.0) / kDraws;  // sum over all
  for (uint32_t i = 0; i < kElements; ++i) {
    // An element that hardly ever rounds up gives no good estimate of its own variance.
    const double own = std::max(squares[i] / kDraws, variance / kElements);
    EXPECT_LE(std::abs(sums[i] / kDraws), 5 * std::sqrt(own / kDraws) + 1e-6) << i;
  }
  std::mt19937 random(5);
  for (int projection = 0; projection < 20; ++projection) {
    double sum = 0;
    for (uint32_t i = 0; i < kElements; ++i) {
      const bool negative = projection == 0 ? values[i] < 0 : random() % 2 == 1;
      sum += (negative ? -sums[i] : sums[i]) / kDraws;
    }
    // Errors of elements may depend on each other (random-k). In the worst case the
    // errors of one draw then add up.
    EXPECT_LE(std::abs(sum), 5 * std::sqrt(2 * variance / kDraws) + 1e-4) << projection;
  }
}

TEST_P(LossyCodecContract, EachPartOfTheContextChangesTheDraw) {
  if (codec_->traits().variance == 0) return;  // draws nothing
  const Floats values = Values(Shape::kGaussian, 1000);
  const auto encode = [&](const EncodeContext& context) {
    Bytes room(codec_->MaxEncodedBytes(1000));
    return First(codec_->Encode(values, {}, context, room), room);
  };
  const Bytes original = encode({});
  EXPECT_NE(encode({.seed = 1}), original);
  EXPECT_NE(encode({.step = 1}), original);
  EXPECT_NE(encode({.tensor = 1}), original);
  EXPECT_NE(encode({.first_element = 65536}), original);
}

}  // namespace syncline
