#include "comm/codec/sparse/selector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/random.h"
#include "comm/codec/sparse/magnitude.h"
#include "comm/codec/sparse/proportional.h"

namespace syncline {
namespace {

constexpr uint32_t kSampleStride = 100;

bool IsTopK(SelectorKind kind) {
  return kind == SelectorKind::kTopK || kind == SelectorKind::kTopKSampled ||
         kind == SelectorKind::kTopKReuse;
}

bool HasRatio(SelectorKind kind) {
  return IsTopK(kind) || kind == SelectorKind::kRandomK ||
         kind == SelectorKind::kProportional;
}

// Returns base^exponent for an exponent in [0, 1). It uses only square roots, whose bits
// IEEE 754 defines; those of std::pow are not.
double FractionalPower(double base, double exponent) {
  double power = 1;
  for (int bit = 0; bit < 32; ++bit) {
    base = std::sqrt(base);
    exponent *= 2;
    if (exponent < 1) continue;
    exponent -= 1;
    power *= base;
  }
  return power;
}

double LargestRatio(const SelectorSpec& spec) {
  return spec.warmup.steps > 0 ? spec.warmup.ratio : spec.ratio;
}

uint64_t CountOf(double ratio, uint64_t n) {
  const auto k = static_cast<uint64_t>(ratio * static_cast<double>(n));
  return std::min<uint64_t>(std::max<uint64_t>(k, 1), n);
}

// Finds the values of at least `floor`. Returns whether there are about k.
bool FindAbout(uint32_t k, uint32_t floor, std::span<const float> values,
               IndexList& found) {
  FindAtLeast(values, floor, found);
  return found.count() >= (k + 1) / 2 && found.count() <= 2 * k;
}

void SelectSampled(uint32_t k, std::span<const float> values, IndexList& found) {
  const auto rank =
      static_cast<uint32_t>(std::lround(static_cast<double>(k) / kSampleStride));
  if (rank > 0 &&
      FindAbout(k, SampledMagnitude(values, kSampleStride, rank), values, found)) {
    return;
  }
  FindLargest(values, k, found);
}

void SelectReusing(const SelectorSpec& spec, std::span<const float> values,
                   const EncodeContext& context, IndexList& found) {
  const auto k = static_cast<uint32_t>(TopCount(spec, values.size(), context.step));
  // Tiles take turns to find exact thresholds, so that no step is slower than others.
  const uint64_t turn = context.step + context.first_element / kTileElements;
  const uint32_t kept = context.memory.empty() ? 0 : MagnitudeBits(context.memory[0]);
  if (kept != 0 && turn % spec.period != 0 && FindAbout(k, kept, values, found)) return;
  const uint32_t smallest = FindLargest(values, k, found);
  if (!context.memory.empty()) context.memory[0] = std::bit_cast<float>(smallest);
}

// Takes the largest values of each chunk, so that a region of small values sends some
// too.
void SelectInChunks(const SelectorSpec& spec, std::span<const float> values,
                    const EncodeContext& context, IndexList& found) {
  const size_t chunk_elements = size_t{1} << spec.chunk_log2;
  IndexList of_chunk(static_cast<uint32_t>(std::min(chunk_elements, values.size())));
  for (size_t first = 0; first < values.size(); first += chunk_elements) {
    const auto chunk =
        values.subspan(first, std::min(chunk_elements, values.size() - first));
    FindLargest(chunk, static_cast<uint32_t>(TopCount(spec, chunk.size(), context.step)),
                of_chunk);
    for (const uint16_t i : of_chunk.view()) {
      found.Append(static_cast<uint32_t>(first) + i);
    }
  }
}

uint32_t MostOfTopK(const SelectorSpec& spec, uint32_t n) {
  // All large values may be in this tile.
  if (spec.scope == SelectorScope::kTensor) return n;
  const double ratio = LargestRatio(spec);
  const uint32_t chunk = 1u << spec.chunk_log2;
  const auto of_whole = static_cast<uint32_t>(CountOf(ratio, chunk));
  const uint32_t rest = n % chunk;
  const auto of_rest = rest == 0 ? 0 : static_cast<uint32_t>(CountOf(ratio, rest));
  return n / chunk * of_whole + of_rest;
}

uint64_t SharedSeed(const SelectorSpec& spec, const EncodeContext& context) {
  // The seed differs from that of the quantizer's random bits, in case the job uses one
  // for both.
  constexpr uint64_t kPositions = 0x9f8a5e3c71d2b604u;
  const RandomBits random(spec.seed ^ kPositions, context.step, context.tensor,
                          context.first_element);
  return uint64_t{random.At(0)} << 32 | random.At(1);
}

void SelectProportionally(uint32_t k, std::span<const float> values,
                          const EncodeContext& context, Selection& selection) {
  const auto n = static_cast<uint32_t>(values.size());
  // Decides before drawing: whether everything is sent must not depend on the draw, or
  // the mean would be biased.
  if (k + 1 > LargestListed(n)) return selection.indices.SetEvery(n);
  // The seed differs from that of the quantizer's random bits.
  constexpr uint64_t kPositions = 0x5be0cd19137e2179u;
  const RandomBits random(context.seed ^ kPositions, context.step, context.tensor,
                          context.first_element);
  const double t = ProportionalThreshold(values, k);
  selection.least = static_cast<float>(
      std::min(t, static_cast<double>(std::numeric_limits<float>::max())));
  SampleProportionally(values, t, random.At(0), selection.indices);
}

void SelectBlocks(std::span<const float> values, IndexList& found) {
  const auto n = static_cast<uint32_t>(values.size());
  uint32_t count = 0;
  uint16_t* const out = found.data();
  for (uint32_t first = 0; first < n; first += kSelectorBlock) {
    const uint32_t last = std::min(first + kSelectorBlock, n);
    uint32_t any = 0;
    for (uint32_t i = first; i < last; ++i) any |= std::bit_cast<uint32_t>(values[i]);
    if (any == 0) continue;
    for (uint32_t i = first; i < last; ++i) out[count++] = static_cast<uint16_t>(i);
  }
  found.set_count(count);
}

}  // namespace

absl::Status CheckSelector(const SelectorSpec& spec) {
  if (HasRatio(spec.kind) && !(spec.ratio > 0 && spec.ratio <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ratio ", spec.ratio, " of a sparse codec is not in (0, 1]"));
  }
  if (HasRatio(spec.kind) &&
      !(LargestRatio(spec) >= spec.ratio && LargestRatio(spec) <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "warmup_ratio ", spec.warmup.ratio, " of a sparse codec is not in [", spec.ratio,
        ", 1]: a warm-up must not begin below the ratio that it ends with"));
  }
  if (spec.scope == SelectorScope::kTensor && spec.kind != SelectorKind::kTopK) {
    return absl::InvalidArgumentError("scope=tensor is for top-k alone");
  }
  if (spec.chunk_log2 < kMinChunkLog2 || spec.chunk_log2 > kMaxChunkLog2) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_log2 ", spec.chunk_log2, " of a sparse codec is not in [",
                     kMinChunkLog2, ", ", kMaxChunkLog2, "]"));
  }
  const bool has_chunks = spec.chunk_log2 != kMaxChunkLog2;
  if (has_chunks &&
      (spec.kind != SelectorKind::kTopK || spec.scope == SelectorScope::kTensor)) {
    return absl::InvalidArgumentError(
        "chunk_log2 is for the largest of each chunk: for top-k with scope=tile alone");
  }
  if (spec.kind == SelectorKind::kThreshold &&
      !(spec.threshold >= 0 && std::isfinite(spec.threshold))) {
    return absl::InvalidArgumentError(absl::StrCat("threshold ", spec.threshold,
                                                   " of a sparse codec is not a "
                                                   "magnitude; take 0 or more"));
  }
  if (spec.kind == SelectorKind::kTopKReuse && spec.period == 0) {
    return absl::InvalidArgumentError(
        "period 0 of topk-reuse would never renew the threshold; take 1 or more");
  }
  return absl::OkStatus();
}

double RatioAt(const SelectorSpec& spec, uint64_t step) {
  const RatioWarmup& warmup = spec.warmup;
  const uint64_t past = step - std::min(step, warmup.first_step);
  if (past >= warmup.steps) return spec.ratio;
  const double share = static_cast<double>(past) / static_cast<double>(warmup.steps);
  const double ratio = warmup.ratio * FractionalPower(spec.ratio / warmup.ratio, share);
  return std::clamp(ratio, spec.ratio, warmup.ratio);
}

uint64_t TopCount(const SelectorSpec& spec, uint64_t n, uint64_t step) {
  return CountOf(RatioAt(spec, step), n);
}

uint32_t MaxSelected(const SelectorSpec& spec, uint32_t n) {
  const auto k = static_cast<uint32_t>(CountOf(LargestRatio(spec), n));
  uint32_t most = n;
  if (spec.kind == SelectorKind::kTopK) {
    most = MostOfTopK(spec, n);
  } else if (spec.kind == SelectorKind::kRandomK) {
    most = k;
  } else if (spec.kind == SelectorKind::kProportional) {
    most = std::min(k + 1, n);
  } else if (IsTopK(spec.kind)) {
    most = std::min(2 * k, n);
  }
  return spec.kind != SelectorKind::kRandomK && most > LargestListed(n) ? n : most;
}

Selection Select(const SelectorSpec& spec, std::span<const float> values,
                 const EncodeContext& context) {
  SYNCLINE_CHECK(values.size() <= kTileElements);
  const auto n = static_cast<uint32_t>(values.size());
  Selection selection{.indices = IndexList(n)};
  IndexList& found = selection.indices;
  const auto k = static_cast<uint32_t>(TopCount(spec, n, context.step));
  switch (spec.kind) {
    case SelectorKind::kTopK:
      if (spec.scope == SelectorScope::kTensor && context.threshold > 0) {
        FindAtLeast(values, MagnitudeBits(context.threshold), found);
      } else if (n > 1u << spec.chunk_log2) {
        SelectInChunks(spec, values, context, found);
      } else {
        FindLargest(values, k, found);
      }
      break;
    case SelectorKind::kTopKSampled:
      SelectSampled(k, values, found);
      break;
    case SelectorKind::kTopKReuse:
      SelectReusing(spec, values, context, found);
      break;
    case SelectorKind::kRandomK:
      selection.seed = SharedSeed(spec, context);
      RandomPositions(selection.seed, k, n, found);
      return selection;
    case SelectorKind::kProportional:
      SelectProportionally(k, values, context, selection);
      return selection;
    case SelectorKind::kThreshold:
      FindAtLeast(values, MagnitudeBits(spec.threshold) + 1, found);
      break;
    case SelectorKind::kBlocks:
      SelectBlocks(values, found);
      return selection;
  }
  if (found.count() > LargestListed(n)) found.SetEvery(n);
  return selection;
}

// Floyd's sampling without replacement (Bentley and Floyd, CACM 30 (9), 1987).
void RandomPositions(uint64_t seed, uint32_t count, uint32_t n, IndexList& positions) {
  SYNCLINE_CHECK(count <= n && n <= kTileElements);
  std::array<uint64_t, kTileElements / 64> taken = {};
  const RandomBits random(seed, 0, 0, 0);
  for (uint32_t last = n - count; last < n; ++last) {
    // The deviation from a uniform distribution is a multiple of 2^-32.
    auto position = static_cast<uint32_t>(uint64_t{random.At(last)} * (last + 1) >> 32);
    if ((taken[position / 64] >> (position % 64) & 1) != 0) position = last;
    taken[position / 64] |= uint64_t{1} << (position % 64);
  }
  positions.set_count(0);
  for (uint32_t word = 0; word * 64 < n; ++word) {
    for (uint64_t bits = taken[word]; bits != 0; bits &= bits - 1) {
      positions.Append(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
}

}  // namespace syncline
