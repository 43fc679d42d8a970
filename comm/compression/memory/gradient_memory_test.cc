#include "comm/compression/memory/gradient_memory.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr uint32_t kElements = kTileElements + 300;  // a tile and a bit

std::vector<float> Gradient(uint32_t step) {
  std::mt19937 random(step);
  std::vector<float> gradient(kElements);
  for (float& value : gradient) value = std::normal_distribution<float>()(random);
  return gradient;
}

// A sender of one block, together with what its receiver decodes.
class Sender {
 public:
  explicit Sender(std::string_view text) : Sender(*ParseTransfer(text)) {}
  explicit Sender(Transfer transfer)
      : transfer_(std::move(transfer)), memory_(transfer_.memory, kElements) {}

  std::vector<float> Send(std::span<const float> gradient,
                          const GradientUnits& units = {}) {
    const BlockLabel label = {.range = {.elements = kElements}, .step = ++step_};
    const CodecSet codecs = transfer_.Accepted();
    const Buffer bytes = Buffer::Allocate(MaxBlockBytes(codecs, kElements));
    BlockWriter writer(label, Checksum::kHeaderAndPayload, bytes.owner());
    for (uint32_t first = 0; first < kElements; first += kTileElements) {
      const auto n = std::min<size_t>(kTileElements, kElements - first);
      const GradientMemory::Squares squares =
          memory_.EncodeTile(transfer_,
                             {.gradient = gradient.subspan(first, n),
                              .context = ContextAt(label, first),
                              .units = units},
                             writer, workspace_);
      if (squares.gradient > 0) squares_ = squares;
    }
    const Buffer payload = Gather(writer.Finish());
    const auto view = ParseBlock(payload.view(), label, codecs);
    EXPECT_TRUE(view.ok()) << view.status();
    std::vector<float> decoded(kElements);
    codecs_.clear();
    for (const TileView& tile : view->tiles) {
      codecs_.push_back(tile.codec->id());
      EXPECT_TRUE(tile.codec
                      ->Decode(tile.bytes, std::span(decoded).subspan(tile.first_element,
                                                                      tile.elements))
                      .ok());
    }
    return decoded;
  }

  std::span<const float> residual() const { return memory_.residual(); }
  GradientMemory& memory() { return memory_; }
  // Returns the squares of the tile that was sampled last.
  const GradientMemory::Squares& squares() const { return squares_; }
  // Returns the codecs of the tiles that were sent last.
  const std::vector<CodecId>& codecs() const { return codecs_; }

 private:
  const Transfer transfer_;
  GradientMemory memory_;
  GradientMemory::Workspace workspace_;
  GradientMemory::Squares squares_;
  uint64_t step_ = 0;
  std::vector<CodecId> codecs_;
};

class ErrorFeedback : public ::testing::TestWithParam<const char*> {};

// What was sent must equal what was given minus what is left, up to rounding.
TEST_P(ErrorFeedback, LosesNothingOverTime) {
  Sender sender(GetParam());
  std::vector<double> given(kElements), sent(kElements);
  for (uint32_t step = 1; step <= 30; ++step) {
    const std::vector<float> gradient = Gradient(step);
    const std::vector<float> decoded = sender.Send(gradient);
    for (uint32_t i = 0; i < kElements; ++i) {
      given[i] += gradient[i];
      sent[i] += decoded[i];
    }
  }
  double largest = 0;
  for (uint32_t i = 0; i < kElements; ++i) {
    largest = std::max(largest, std::abs(given[i] - sent[i] - sender.residual()[i]));
  }
  EXPECT_LT(largest, 2e-4);
  double left = 0;
  for (const float value : sender.residual()) left += std::abs(value);
  EXPECT_GT(left, 0) << "the codec is not lossy at all";
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, ErrorFeedback,
    ::testing::Values("onebit", "int8", "int4", "topk:ratio=0.05",
                      "topk:ratio=0.05,values=int8", "topk-sampled:ratio=0.05",
                      "topk-reuse:ratio=0.05,period=4", "randomk:ratio=0.05",
                      "threshold:threshold=0.5", "int8-stochastic:memory=ef",
                      "natural:memory=ef", "demo:decay=1"));

// What was given must be in what was counted or in what is left, also for steps that do
// not count.
TEST_P(ErrorFeedback, TakesBackWhatDidNotCount) {
  Sender sender(GetParam());
  std::vector<double> given(kElements), counted(kElements);
  for (uint32_t step = 1; step <= 12; ++step) {
    // The loss scale changes half way.
    const GradientUnits units = {.loss_scale = step < 7 ? 1.0f : 4.0f};
    const std::vector<float> gradient = Gradient(step);
    const std::vector<float> decoded = sender.Send(gradient, units);
    for (uint32_t i = 0; i < kElements; ++i) {
      given[i] += gradient[i] / units.loss_scale;
      if (step % 3 != 0) counted[i] += decoded[i] / units.loss_scale;
    }
    for (uint32_t first = 0; step % 3 == 0 && first < kElements; first += kTileElements) {
      const auto n = std::min<size_t>(kTileElements, kElements - first);
      sender.memory().TakeBack({.gradient = std::span(decoded).subspan(first, n),
                                .context = {.first_element = first},
                                .units = units});
    }
  }
  double largest = 0;
  for (uint32_t i = 0; i < kElements; ++i) {
    const double left = sender.residual()[i] / 4.0;
    largest = std::max(largest, std::abs(given[i] - counted[i] - left));
  }
  EXPECT_LT(largest, 2e-4);
}

TEST(GradientMemory, WhatIsNotFiniteIsNotTakenBack) {
  Sender sender("topk:ratio=0.01");
  sender.Send(Gradient(1));
  const std::vector<float> before(sender.residual().begin(), sender.residual().end());
  std::vector<float> sent(kTileElements, 1.0f);
  sent[7] = std::numeric_limits<float>::infinity();
  sender.memory().TakeBack({.gradient = sent});
  EXPECT_TRUE(std::ranges::equal(sender.residual(), before));
}

TEST(GradientMemory, WithoutMemoryEachStepStandsAlone) {
  Sender sender("onebit:memory=none");
  const std::vector<float> first = sender.Send(Gradient(1));
  EXPECT_TRUE(sender.residual().empty());
  EXPECT_EQ(sender.Send(Gradient(1)), first);
}

TEST(GradientMemory, DecayForgets) {
  Sender sender("topk:ratio=0.01,decay=0.5");
  sender.Send(Gradient(1));
  const std::vector<float> before(sender.residual().begin(), sender.residual().end());
  const std::vector<float> zeros(kElements);
  const std::vector<float> sent = sender.Send(zeros);
  for (uint32_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(sent[i] + sender.residual()[i], 0.5f * before[i]);
  }
}

TEST(GradientMemory, FollowsTheLossScale) {
  Sender sender("topk:ratio=0.01");
  sender.Send(Gradient(1), {.loss_scale = 1024});
  const std::vector<float> before(sender.residual().begin(), sender.residual().end());
  const std::vector<float> zeros(kElements);
  const std::vector<float> sent = sender.Send(zeros, {.loss_scale = 512});
  for (uint32_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(sent[i] + sender.residual()[i], 0.5f * before[i]);
  }
}

TEST(GradientMemory, WhatIsKeptIsAppliedWithTheLearningRateOfItsOwnStep) {
  Sender sender("topk:ratio=0.01");
  sender.Send(Gradient(1), {.learning_rate = 0.1f});
  const std::vector<float> before(sender.residual().begin(), sender.residual().end());
  const std::vector<float> zeros(kElements);
  const std::vector<float> sent = sender.Send(zeros, {.learning_rate = 0.05f});
  for (uint32_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(sent[i] + sender.residual()[i], 2 * before[i]);
  }
  // Rates that have no meaning must change nothing.
  const std::vector<float> kept(sender.residual().begin(), sender.residual().end());
  const std::vector<float> more = sender.Send(zeros, {.learning_rate = 0});
  for (uint32_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(more[i] + sender.residual()[i], kept[i]);
  }
}

TEST(GradientMemory, SettlesWhatErrorFeedbackHasKept) {
  Sender sender("onebit");
  std::vector<double> given(kElements), sent(kElements);
  for (uint32_t step = 1; step <= 10; ++step) {
    const std::vector<float> gradient = Gradient(step);
    const std::vector<float> decoded = sender.Send(gradient, {.loss_scale = 4});
    for (uint32_t i = 0; i < kElements; ++i) {
      given[i] += gradient[i];
      sent[i] += decoded[i];
    }
  }
  const std::span<const float> rest = sender.memory().Settle({.loss_scale = 2});
  for (uint32_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(sent[i] + 2 * rest[i], given[i], 1e-4);
  }
}

// Momentum SGD applies each gradient 1 + m + m^2 + ... times.
TEST(GradientMemory, SettlesAlsoWhatMomentumWouldStillBring) {
  Sender sender("dgc:ratio=0.1,momentum=0.5");
  std::vector<double> given(kElements), sent(kElements);
  std::vector<float> velocity(kElements);
  for (uint32_t step = 1; step <= 4; ++step) {
    const std::vector<float> gradient = Gradient(step);
    const std::vector<float> decoded = sender.Send(gradient);
    for (uint32_t i = 0; i < kElements; ++i) {
      given[i] += 2 * gradient[i];
      sent[i] += decoded[i];
      // Masking clears the momentum of values that were sent.
      velocity[i] = 0.5f * velocity[i] + gradient[i];
      if (decoded[i] == 0) continue;
      given[i] -= velocity[i];
      velocity[i] = 0;
    }
  }
  const std::span<const float> rest = sender.memory().Settle({});
  for (uint32_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(sent[i] + rest[i], given[i], 1e-4) << i;
  }
}

TEST(GradientMemory, WithoutMemoryThereIsNothingToSettle) {
  Sender sender("int8:memory=none");
  sender.Send(Gradient(1));
  EXPECT_TRUE(sender.memory().Settle({}).empty());
}

TEST(GradientMemory, GoesOnWhereAnotherOneEnded) {
  for (const char* text : {"onebit", "dgc:ratio=0.01", "demo"}) {
    Sender first(text);
    first.Send(Gradient(1), {.loss_scale = 8});
    Sender second(text);
    second.Send(Gradient(7));
    const std::vector<GradientUnits> units = first.memory().units();
    ASSERT_TRUE(second.memory().Restore({.residual = first.residual(),
                                         .velocity = first.memory().velocity(),
                                         .units = units}));
    EXPECT_EQ(second.Send(Gradient(2)), first.Send(Gradient(2))) << text;
  }
}

TEST(GradientMemory, RestoresNothingOfAnotherSize) {
  Sender sender("onebit");
  sender.Send(Gradient(1));
  const std::vector<float> before(sender.residual().begin(), sender.residual().end());
  const std::vector<float> other(kElements - 1);
  const std::vector<GradientUnits> units = sender.memory().units();
  EXPECT_FALSE(sender.memory().Restore({.residual = other, .units = units}));
  EXPECT_FALSE(sender.memory().Restore({.residual = before, .units = {}}));
  EXPECT_FALSE(
      sender.memory().Restore({.residual = before, .velocity = before, .units = units}));
  EXPECT_TRUE(std::ranges::equal(sender.residual(), before));
}

TEST(GradientMemory, SaysHowMuchItKeepsOfAGradient) {
  Sender sender("topk:ratio=0.01");
  sender.Send(Gradient(1));
  EXPECT_EQ(sender.squares().gradient, 0) << "not at every step";
  for (uint32_t step = 2; step <= 200; ++step) sender.Send(Gradient(1));
  double given = 0, kept = 0;
  for (const float value : Gradient(1)) given += double{value} * double{value};
  for (const float value : sender.residual()) kept += double{value} * double{value};
  const double ratio = std::sqrt(kept / given);
  EXPECT_GT(ratio, 1);
  const auto [gradient, residual] = sender.squares();
  EXPECT_NEAR(std::sqrt(residual / gradient), ratio, 0.3 * ratio);
}

TEST(GradientMemory, TilesThatAreNotFiniteTravelDenselyAndChangeNothing) {
  for (const char* text :
       {"onebit", "topk", "dgc:ratio=0.01", "demo", "int8:memory=none"}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::infinity()}) {
      Sender sender(text);
      Sender other(text);
      for (uint32_t step = 1; step <= 3; ++step) {
        sender.Send(Gradient(step));
        other.Send(Gradient(step));
      }
      std::vector<float> gradient = Gradient(4);
      gradient[77] = bad;
      const std::vector<float> decoded = sender.Send(gradient);
      EXPECT_EQ(sender.codecs()[0], CodecId::kBf16) << text;
      EXPECT_NE(sender.codecs()[1], CodecId::kBf16) << "only the tile that needs it";
      EXPECT_FALSE(std::isfinite(decoded[77]));
      // The first tile continues as if that step had not happened. The second took part
      // in it.
      const std::vector<float> next = sender.Send(Gradient(5));
      const std::vector<float> expected = other.Send(Gradient(5));
      for (uint32_t i = 0; i < kTileElements; ++i) ASSERT_EQ(next[i], expected[i]);
    }
  }
}

// Algorithm 1 of the paper (arXiv 2411.19870), with the rate outside: the momentum is
// decay * momentum + gradient, minus what is sent of it. If the rate changes, it keeps the
// rates of its own steps.
TEST(DecoupledMomentum, IsThatOfThePaper) {
  constexpr double kDecay = 0.9;
  Sender sender("demo:ratio=0.02,decay=0.9,values=fp32");
  std::vector<double> momentum(kElements);  // times the rate
  for (uint32_t step = 1; step <= 6; ++step) {
    const float rate = step < 4 ? 0.5f : 0.125f;
    const std::vector<float> gradient = Gradient(step);
    const std::vector<float> sent = sender.Send(gradient, {.learning_rate = rate});
    double left = 0;
    double total = 0;
    for (uint32_t i = 0; i < kElements; ++i) {
      const double before = kDecay * momentum[i] + rate * gradient[i];
      momentum[i] = before - rate * sent[i];
      ASSERT_NEAR(rate * sender.residual()[i], momentum[i], 1e-5) << step;
      left += momentum[i] * momentum[i];
      total += before * before;
    }
    EXPECT_LT(left, 0.95 * total) << "2 % of the coefficients hold more than 5 %";
    EXPECT_GT(left, 0.5 * total);
  }
}

// Algorithm 1 of the paper for an uncompressed selection: u and v of one element.
TEST(MomentumCorrection, IsThatOfThePaper) {
  for (const bool nesterov : {false, true}) {
    Sender sender(nesterov ? "dgc:ratio=0.1,momentum=0.5,nesterov=1"
                           : "dgc:ratio=0.1,momentum=0.5");
    std::vector<float> u(kElements), v(kElements);
    uint64_t sent_values = 0;
    for (uint32_t step = 1; step <= 8; ++step) {
      const std::vector<float> gradient = Gradient(step);
      const std::vector<float> decoded = sender.Send(gradient);
      for (uint32_t i = 0; i < kElements; ++i) {
        const float g = gradient[i];
        u[i] = nesterov ? 0.5f * (u[i] + g) : 0.5f * u[i] + g;
        v[i] += nesterov ? u[i] + g : u[i];
        if (decoded[i] == 0) continue;
        ++sent_values;
        ASSERT_NEAR(decoded[i], v[i], 1e-5) << step;
        u[i] = v[i] = 0;
      }
      for (uint32_t i = 0; i < kElements; ++i) {
        ASSERT_NEAR(sender.residual()[i], v[i], 1e-5) << step;
      }
    }
    EXPECT_NEAR(static_cast<double>(sent_values), 8 * 0.1 * kElements, 20);
  }
}

// ---- Values that a codec cannot express ----

struct Limit {
  const char* text;
  float value;
};

class BeyondLimit : public ::testing::TestWithParam<Limit> {};

INSTANTIATE_TEST_SUITE_P(Codecs, BeyondLimit,
                         ::testing::Values(Limit{"topk:ratio=0.01,values=fp16", 1e5f},
                                           Limit{"topk:ratio=0.01,values=fp16", 65520},
                                           Limit{"topk:ratio=0.01,values=bf16", 3.4e38f},
                                           Limit{"dgc:ratio=0.01,values=fp16", 1e5f},
                                           Limit{"demo:values=fp16", 1024},
                                           Limit{"demo", 0x1p96f}));

// Nothing infinite may arrive or stay, and the next step must be sparse again.
TEST_P(BeyondLimit, CostsOneDenseTile) {
  const auto& [text, value] = GetParam();
  const CodecId own = ParseTransfer(text)->codec->id();
  Sender sender(text);
  sender.Send(Gradient(1));
  std::vector<float> gradient = Gradient(2);
  gradient[77] = value;
  const std::vector<float> decoded = sender.Send(gradient);
  EXPECT_EQ(sender.codecs()[0], CodecId::kBf16);
  EXPECT_EQ(sender.codecs()[1], own);
  EXPECT_NEAR(decoded[77] / value, 1, 0.005);
  for (const float left : sender.residual()) ASSERT_TRUE(std::isfinite(left));
  const std::vector<float> next = sender.Send(Gradient(3));
  EXPECT_EQ(sender.codecs()[0], own);
  for (const float one : next) ASSERT_TRUE(std::isfinite(one));
}

INSTANTIATE_TEST_SUITE_P(MoreCodecs, ErrorFeedback,
                         ::testing::Values("topk:ratio=0.05,values=fp16"));

TEST(GradientMemory, SendsAMatrixDenselyThatHasNoFactors) {
  const uint64_t shape[] = {436, 151};
  Sender sender(*ParseTransfer("powersgd")->ForTensor(Transfer::ShapeOf("w", shape)));
  std::vector<float> gradient = Gradient(1);
  sender.Send(gradient);
  EXPECT_EQ(sender.codecs()[0], CodecId::kLowRank);
  gradient[5] = 0x1p96f;
  const std::vector<float> decoded = sender.Send(gradient);
  EXPECT_EQ(sender.codecs()[0], CodecId::kBf16);
  EXPECT_EQ(decoded[5], 0x1p96f);
}

TEST(GradientMemory, SendsAllThatItKeptWithADenseTile) {
  Sender sender("topk:ratio=0.01,values=fp16");
  std::vector<double> given(kElements), sent(kElements);
  for (uint32_t step = 1; step <= 6; ++step) {
    std::vector<float> gradient = Gradient(step);
    if (step == 4) gradient[3] = 1e5f;
    const std::vector<float> decoded = sender.Send(gradient);
    for (uint32_t i = 0; i < kElements; ++i) {
      given[i] += gradient[i];
      sent[i] += decoded[i];
    }
  }
  for (uint32_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(given[i] - sent[i] - sender.residual()[i], 0, 1e-2) << i;
  }
}

// A cosine schedule restarts: rates 0.1, 0, 0.1.
TEST(GradientMemory, WaitsWhereTheRateIsZero) {
  Sender sender("topk:ratio=0.01");
  sender.Send(Gradient(1), {.learning_rate = 0.1f});
  const std::vector<float> kept(sender.residual().begin(), sender.residual().end());
  sender.Send(Gradient(2), {.learning_rate = 0});
  EXPECT_THAT(sender.residual(), ::testing::ElementsAreArray(kept));
  // At twice the rate, half of what was kept is owed.
  sender.Send(std::vector<float>(kElements), {.learning_rate = 0.2f});
  double left = 0;
  double was = 0;
  for (uint32_t i = 0; i < kElements; ++i) {
    left += std::abs(sender.residual()[i]);
    was += std::abs(kept[i]);
  }
  EXPECT_NEAR(left / was, 0.5, 0.05);
}

}  // namespace
}  // namespace syncline
