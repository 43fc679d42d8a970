#include "cli/bench/coded_tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/random.h"
#include "comm/base/status.h"
#include "comm/base/tiling.h"

namespace syncline {
namespace {

constexpr uint64_t kSamples = 4096;
constexpr uint64_t kEpoch = 1;
constexpr float kDeviation = 0.01f;

// Returns a nearly Gaussian value: the number of ones in 32 random bits, which is
// binomial with variance 8, plus a uniform value with variance 1/12.
float Gaussian(uint32_t bits, uint32_t uniform) {
  const float ones = static_cast<float>(std::popcount(bits)) - 16.0f;
  const float smear = static_cast<float>(uniform >> 8) * 0x1p-24f - 0.5f;
  return (ones + smear) * (kDeviation / 2.8431204f);
}

std::vector<float> MakeGradient(const BenchCodedTensor::Options& options, uint64_t seed) {
  std::vector<float> gradient(options.elements);
  for (uint64_t first = 0; first < gradient.size(); first += kTileElements) {
    const RandomBits bits(seed, 0, options.number, first);
    const RandomBits uniform(seed, 1, options.number, first);
    const uint32_t n = TileElements(options.elements, first / kTileElements);
    for (uint32_t i = 0; i < n; ++i) {
      gradient[first + i] = Gaussian(bits.At(i), uniform.At(i));
    }
  }
  return gradient;
}

double Seconds(std::chrono::steady_clock::time_point from,
               std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double Largest(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

double SquaredNorm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return sum;
}

template <typename... Parts>
absl::Status Wrong(const Parts&... what) {
  return absl::DataLossError(
      absl::StrCat(what..., ": the benchmark's result is wrong; this is a bug"));
}

}  // namespace

BenchCodedTensor::BenchCodedTensor(const Options& options)
    : options_(options),
      accepted_(options.transfer.Accepted()),
      blocks_(CutIntoBlocks(std::array{options.elements})),
      // Odd, so that samples include every position in a strip.
      stride_((options.elements / kSamples) | 1),
      gradients_{MakeGradient(options, 0), MakeGradient(options, 1)},
      accumulator_(options.elements),
      memory_(options.transfer.memory, options.elements),
      payloads_(blocks_.size()),
      replayed_((options.elements + stride_ - 1) / stride_) {
  rooms_.reserve(blocks_.size());
  for (const BlockRange& range : blocks_) {
    rooms_.push_back(Buffer::Allocate(MaxBlockBytes(accepted_, range.elements)));
  }
}

double BenchCodedTensor::Bytes(const Options& options) {
  double floats = 3;  // two gradients and the accumulator
  if (options.transfer.memory.kind != MemoryKind::kNone) ++floats;
  if (options.transfer.memory.kind == MemoryKind::kMomentumCorrection) ++floats;
  const double frames =
      static_cast<double>(MaxBlockBytes(options.transfer.Accepted(), kTileElements)) /
      kTileElements;
  return static_cast<double>(options.elements) * (floats * sizeof(float) + frames);
}

BlockLabel BenchCodedTensor::Label(const BlockRange& range) const {
  return {.range = range, .step = rounds_, .epoch = kEpoch, .seed = options_.number};
}

BenchCodedTensor::Times BenchCodedTensor::Round() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Encode();
  const auto encoded = Clock::now();
  const std::vector<BlockView> views = Parse();
  const auto parsed = Clock::now();
  DecodeAdd(views);
  const auto decoded = Clock::now();
  Times times = {.encode = Seconds(start, encoded),
                 .parse = Seconds(encoded, parsed),
                 .decode = Seconds(parsed, decoded)};
  for (const Payload& payload : payloads_) times.wire_bytes += PayloadBytes(payload);
  Replay();
  ++rounds_;
  return times;
}

void BenchCodedTensor::Encode() {
  const std::span<const float> gradient = Gradient();
  for (size_t block = 0; block < blocks_.size(); ++block) {
    const BlockRange& range = blocks_[block];
    const BlockLabel label = Label(range);
    const auto values = gradient.subspan(range.first_element, range.elements);
    BlockWriter writer(label, Checksum::kHeaderOnly, rooms_[block].owner());
    for (uint32_t tile = 0; tile < TilesOf(range.elements); ++tile) {
      const size_t first = size_t{tile} * kTileElements;
      memory_.EncodeTile(
          options_.transfer,
          {.gradient = values.subspan(first, TileElements(range.elements, tile)),
           .context = ContextAt(label, first)},
          writer, workspace_);
    }
    payloads_[block] = writer.Finish();
  }
}

std::vector<BlockView> BenchCodedTensor::Parse() const {
  std::vector<BlockView> views;
  views.reserve(blocks_.size());
  for (size_t block = 0; block < blocks_.size(); ++block) {
    const Slice& frames = payloads_[block].front();
    auto view = ParseBlock({frames.data, frames.size}, Label(blocks_[block]), accepted_);
    SYNCLINE_CHECK(view.ok());
    views.push_back(*std::move(view));
  }
  return views;
}

void BenchCodedTensor::DecodeAdd(std::span<const BlockView> views) {
  for (size_t block = 0; block < blocks_.size(); ++block) {
    const auto sum = std::span(accumulator_)
                         .subspan(blocks_[block].first_element, blocks_[block].elements);
    for (const TileView& tile : views[block].tiles) {
      SYNCLINE_CHECK(tile.codec
                         ->DecodeAdd(tile.bytes, 1.0f,
                                     sum.subspan(tile.first_element, tile.elements))
                         .ok());
    }
  }
}

// Applies the formulas of comm/compression/memory/gradient_memory.h, with the values that
// arrived for C(x).
void BenchCodedTensor::Replay() {
  const MemorySpec& spec = options_.transfer.memory;
  const bool corrects = spec.kind == MemoryKind::kMomentumCorrection;
  for (size_t sample = 0; sample < replayed_.size(); ++sample) {
    Replayed& element = replayed_[sample];
    const double g = Gradient()[sample * stride_];
    const float accumulated = accumulator_[sample * stride_];
    const double sent = double{accumulated} - element.accumulated;
    element.accumulated = accumulated;
    double& u = element.velocity;
    if (!corrects) {
      element.kept = g + spec.decay * element.kept - sent;
      continue;
    }
    u = spec.momentum * (spec.nesterov ? u + g : u) + (spec.nesterov ? 0 : g);
    element.kept += u + (spec.nesterov ? g : 0) - sent;
    if (sent != 0) u = 0;
  }
}

// ---- Checks ----

double BenchCodedTensor::Given(size_t element) const {
  return Count(0) * gradients_[0][element] + Count(1) * gradients_[1][element];
}

// Returns a bound of FP32's rounding error of one element: half a unit in the last place
// for each of about four operations per round.
double BenchCodedTensor::Rounding() const {
  const double largest = std::max({Largest(accumulator_), Largest(memory_.residual()),
                                   Largest(gradients_[0]) + Largest(gradients_[1])});
  return 0x1p-22 * static_cast<double>(rounds_) * largest;
}

absl::StatusOr<std::string> BenchCodedTensor::Check() const {
  SYNCLINE_RETURN_IF_ERROR(CheckFinite());
  const MemorySpec& spec = options_.transfer.memory;
  if (options_.transfer.compresses() && spec.kind != MemoryKind::kNone) {
    const bool keeps_all = spec.kind == MemoryKind::kErrorFeedback && spec.decay == 1;
    SYNCLINE_RETURN_IF_ERROR(keeps_all ? CheckSum() : CheckReplay());
    return keeps_all ? "sum" : "replay";
  }
  const CodecTraits traits = options_.transfer.codec->traits();
  if (!traits.unbiased && traits.contraction == 0) return "finite";
  SYNCLINE_RETURN_IF_ERROR(CheckError(traits));
  return "traits";
}

absl::Status BenchCodedTensor::CheckFinite() const {
  for (size_t i = 0; i < accumulator_.size(); ++i) {
    if (!std::isfinite(accumulator_[i])) return Wrong("element ", i, " is not finite");
  }
  return absl::OkStatus();
}

absl::Status BenchCodedTensor::CheckSum() const {
  const double tolerance = Rounding();
  for (size_t i = 0; i < accumulator_.size(); ++i) {
    const double kept = memory_.residual()[i];
    if (std::abs(Given(i) - accumulator_[i] - kept) <= tolerance) continue;
    return Wrong("of ", Given(i), " given for element ", i, ", ", accumulator_[i],
                 " was sent and ", kept, " is kept");
  }
  return absl::OkStatus();
}

absl::Status BenchCodedTensor::CheckReplay() const {
  const double tolerance = Rounding();
  for (size_t sample = 0; sample < replayed_.size(); ++sample) {
    const size_t i = sample * stride_;
    const double kept = memory_.residual()[i];
    if (replayed_[sample].accumulated == accumulator_[i] &&
        std::abs(replayed_[sample].kept - kept) <= tolerance) {
      continue;
    }
    return Wrong(kept, " is kept of element ", i, ", expected ", replayed_[sample].kept);
  }
  return absl::OkStatus();
}

// Errors of unbiased codecs are independent from round to round, so their squares add up
// in the mean. For other codecs the norms add up at worst.
absl::Status BenchCodedTensor::CheckError(const CodecTraits& traits) const {
  constexpr double kChance = 2;  // the mean is bounded, but a single draw is seen
  double error = 0;
  for (size_t i = 0; i < accumulator_.size(); ++i) {
    const double lost = Given(i) - accumulator_[i];
    error += lost * lost;
  }
  double length = 0;
  double square = 0;
  for (size_t which = 0; which < 2; ++which) {
    const double norm = SquaredNorm(gradients_[which]);
    square += Count(which) * norm;
    length += Count(which) * std::sqrt(norm);
  }
  const double bound = traits.unbiased ? std::sqrt(kChance * traits.variance * square)
                                       : std::sqrt(1 - traits.contraction) * length;
  const double rounding =
      Rounding() * std::sqrt(static_cast<double>(accumulator_.size()));
  if (std::sqrt(error) <= bound + rounding) return absl::OkStatus();
  return Wrong("the error is ", std::sqrt(error), ", but the codec promises ", bound);
}

}  // namespace syncline
