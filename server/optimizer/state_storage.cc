#include "server/optimizer/state_storage.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "comm/base/check.h"
#include "comm/base/dtype.h"
#include "comm/base/isa.h"
#include "comm/base/random.h"
#include "comm/codec/wire_values.h"

namespace syncline {
namespace {

// ---- The codes ----

constexpr int kDecades = 7;
constexpr size_t kRunBytes = sizeof(float) + kStateRun;  // scale, then codes

// Codes are looked up by the exponent and the upper mantissa bits of a magnitude. There
// are 128 such buckets for each power of two, and none contains more than one border
// between codes.
constexpr int kBucketShift = 16;
// Smaller magnitudes become zero, or are raised to the smallest code (Code::least_bits).
// The smallest code is at least 3.25e-7, so no border between codes is below 2^-23.
constexpr uint32_t kLowestBits = std::bit_cast<uint32_t>(0x1p-23f);
constexpr uint32_t kOneBits = std::bit_cast<uint32_t>(1.0f);
constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kSmallestNormalBits = 0x00800000u;
constexpr uint32_t kBuckets = ((kOneBits - kLowestBits) >> kBucketShift) + 1;

struct Code {
  std::array<float, 256> values = {};  // by byte
  // The code of a magnitude is (steps[bucket] + bits) >> kBucketShift. The sum carries
  // into the next code exactly if the magnitude is not below the border between the two.
  std::array<uint32_t, kBuckets> steps = {};
  // Bits of the largest magnitude that a negative number can have.
  uint32_t largest_negative_bits = 0;
  // A float has a code if its bits under this mask are below those of infinity. In signed
  // slots the mask removes the sign bit. In unsigned slots it keeps that bit, so negative
  // numbers have no code.
  uint32_t mask = ~uint32_t{0};
  // Bits of the smallest magnitude that a nonzero number is stored as; 0: no minimum.
  uint32_t least_bits = 0;
};

// Returns the bits of the smallest float that is not below the middle of two floats. So a
// tie goes to the larger magnitude.
constexpr uint32_t BorderBits(float low, float high) {
  const double middle = (double{low} + double{high}) / 2;  // exact
  auto border = static_cast<float>(middle);
  if (double{border} < middle) {
    border = std::bit_cast<float>(std::bit_cast<uint32_t>(border) + 1);
  }
  return std::bit_cast<uint32_t>(border);
}

// Computes the ascending magnitudes of codes 0, 1, 2, ..., and returns their number.
// Decade i is cut into `first_cells` * 2^i cells of equal width, between 0.1 and 1 times
// its power of ten. Each cell has one code, with the value of its middle. The last code
// is 1.
constexpr size_t Magnitudes(size_t first_cells, std::array<float, 256>& magnitudes) {
  constexpr double kPowers[kDecades] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  size_t count = 1;
  for (int decade = 0; decade < kDecades; ++decade) {
    const size_t cells = first_cells << decade;
    for (size_t cell = 0; cell < cells; ++cell) {
      const double middle =
          0.1 + 0.9 * (static_cast<double>(cell) + 0.5) / static_cast<double>(cells);
      magnitudes[count++] = static_cast<float>(middle * kPowers[decade]);
    }
  }
  magnitudes[count++] = 1;
  return count;
}

constexpr Code MakeCode(SlotKind kind) {
  const bool is_signed = kind == SlotKind::kSigned;
  Code code;
  const size_t count = Magnitudes(is_signed ? 1 : 2, code.values);
  if (is_signed) {
    code.mask = ~kSign;
    // There are 127 magnitudes below 1 of each sign, zero, and +1. There is no code for
    // -1.
    code.largest_negative_bits = std::bit_cast<uint32_t>(code.values[count - 2]);
    for (size_t i = 1; i + 1 < count; ++i) code.values[256 - i] = -code.values[i];
  } else {
    code.least_bits = std::bit_cast<uint32_t>(code.values[1]);
  }
  uint32_t magnitude = 0;
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    const uint32_t start = kLowestBits + (bucket << kBucketShift);
    const uint32_t end = start + (1u << kBucketShift);
    const uint32_t border = magnitude + 1 < count ? BorderBits(code.values[magnitude],
                                                               code.values[magnitude + 1])
                                                  : ~uint32_t{0};
    // The addition must carry for numbers from the border on, and for none below it.
    const uint32_t carry = border < end ? end - border : 0;
    code.steps[bucket] = ((magnitude - bucket) << kBucketShift) + carry;
    if (border < end) ++magnitude;
  }
  return code;
}

constexpr Code kSignedCode = MakeCode(SlotKind::kSigned);
constexpr Code kUnsignedCode = MakeCode(SlotKind::kUnsigned);

const Code& CodeOf(SlotKind kind) {
  SYNCLINE_CHECK(kind != SlotKind::kWeights);
  return kind == SlotKind::kSigned ? kSignedCode : kUnsignedCode;
}

// ---- Kernels ----

// Returns the element of the largest magnitude among those that have a code. It compares
// integers, because the compiler may not reorder comparisons of floats.
SYNCLINE_KERNEL float LargestOf(size_t n, const float* values, uint32_t mask) {
  int32_t positive = 0;
  int32_t negative = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t coded = bits & ((bits & mask) < kInfinityBits ? ~0u : 0u);
    // Numbers of the other sign are negative as integers, so they never are the largest.
    const auto as_positive = static_cast<int32_t>(coded);
    const auto as_negative = static_cast<int32_t>(coded ^ kSign);
    positive = positive > as_positive ? positive : as_positive;
    negative = negative > as_negative ? negative : as_negative;
  }
  return positive >= negative
             ? std::bit_cast<float>(static_cast<uint32_t>(positive))
             : std::bit_cast<float>(static_cast<uint32_t>(negative) | kSign);
}

// Encodes one run as multiples of the scale. There are no branches on the sign, because
// they could not be predicted. There are three loops, so that all but the look-up
// vectorise.
SYNCLINE_KERNEL void CodeRun(size_t n, const float* __restrict values, float inverse,
                             const Code& code, uint8_t* __restrict out) {
  const uint32_t sign_cost = kOneBits - code.largest_negative_bits;
  uint32_t magnitudes[kStateRun];  // bits, minus kLowestBits
  int8_t signs[kStateRun];         // -1 if negative, otherwise 0
  for (size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i] * inverse);
    const int32_t sign = static_cast<int32_t>(bits) >> 31;
    const uint32_t own_bits = std::bit_cast<uint32_t>(values[i]) & code.mask;
    const uint32_t has_code = own_bits < kInfinityBits ? ~0u : 0u;
    const uint32_t least = own_bits != 0 ? code.least_bits : 0u;
    const uint32_t most = kOneBits - (static_cast<uint32_t>(sign) & sign_cost);
    const uint32_t magnitude = std::min(std::max(bits & ~kSign, least) & has_code, most);
    magnitudes[i] = std::max(magnitude, kLowestBits) - kLowestBits;
    signs[i] = static_cast<int8_t>(sign);
  }
  const uint32_t* __restrict steps = code.steps.data();
  for (size_t i = 0; i < n; ++i) {
    const uint32_t step = steps[magnitudes[i] >> kBucketShift];
    out[i] = static_cast<uint8_t>((step + magnitudes[i]) >> kBucketShift);
  }
  for (size_t i = 0; i < n; ++i) {
    out[i] = static_cast<uint8_t>((out[i] ^ signs[i]) - signs[i]);
  }
}

SYNCLINE_KERNEL void StoreCodesBody(size_t n, const float* values, const Code* code,
                                    std::byte* memory) {
  for (size_t first = 0; first < n; first += kStateRun) {
    const size_t count = std::min(kStateRun, n - first);
    float scale = LargestOf(count, values + first, code->mask);
    const bool is_empty = (std::bit_cast<uint32_t>(scale) & ~kSign) < kSmallestNormalBits;
    if (is_empty) scale = 0;
    __builtin_memcpy(memory, &scale, sizeof(scale));
    auto* out = reinterpret_cast<uint8_t*>(memory + sizeof(scale));
    if (is_empty) {
      __builtin_memset(out, 0, count);
    } else {
      CodeRun(count, values + first, 1.0f / scale, *code, out);
    }
    memory += kRunBytes;
  }
}

SYNCLINE_KERNEL void LoadCodesBody(size_t n, const std::byte* memory, const Code* code,
                                   float* out) {
  const float* __restrict values = code->values.data();
  for (size_t first = 0; first < n; first += kStateRun) {
    const size_t count = std::min(kStateRun, n - first);
    float scale;
    __builtin_memcpy(&scale, memory, sizeof(scale));
    const auto* codes = reinterpret_cast<const uint8_t*>(memory + sizeof(scale));
    float* __restrict to = out + first;
    for (size_t i = 0; i < count; ++i) to[i] = scale * values[codes[i]];
    memory += kRunBytes;
  }
}

// Returns random bits that differ from those of other slots, and from those of codecs
// with the same seed.
RandomBits BitsOf(const StateContext& context) {
  constexpr uint64_t kState = uint64_t{0x73746174} << 32;  // "stat"
  return {context.seed ^ (kState + context.slot), context.update, context.tensor,
          context.first_element};
}

SYNCLINE_KERNEL void StoreBf16Body(size_t n, const float* from, RandomBits random,
                                   std::byte* to) {
  const float* __restrict values = from;
  WireU16* __restrict out = AsU16s(to);
  for (size_t i = 0; i < n; ++i) {
    out[i] = StochasticBf16FromFloat(values[i], random.At(static_cast<uint32_t>(i)));
  }
}

SYNCLINE_KERNEL void LoadBf16Body(size_t n, const std::byte* from, float* to) {
  const WireU16* __restrict values = AsU16s(from);
  float* __restrict out = to;
  for (size_t i = 0; i < n; ++i) out[i] = FloatFromBf16(values[i]);
}

}  // namespace

StateType EffectiveType(StateType wanted, SlotKind kind, uint64_t tensor_elements) {
  if (kind == SlotKind::kWeights || tensor_elements < kMinElementsToReduce) {
    return StateType::kF32;
  }
  return wanted;
}

size_t StateBytes(StateType type, size_t elements) {
  switch (type) {
    case StateType::kF32:
      return elements * sizeof(float);
    case StateType::kBf16:
      return elements * sizeof(uint16_t);
    case StateType::kInt8:
      return elements + (elements + kStateRun - 1) / kStateRun * sizeof(float);
  }
  SYNCLINE_CHECK(false);
}

void LoadState(const StoredSlot& slot, size_t first, std::span<float> out) {
  SYNCLINE_CHECK(first % kStateRun == 0);
  const std::byte* from = slot.memory + StateBytes(slot.type, first);
  switch (slot.type) {
    case StateType::kF32:
      if (!out.empty()) std::memcpy(out.data(), from, out.size_bytes());
      return;
    case StateType::kBf16:
      return Kernel<LoadBf16Body>::Run(out.size(), from, out.data());
    case StateType::kInt8:
      return Kernel<LoadCodesBody>::Run(out.size(), from, &CodeOf(slot.kind), out.data());
  }
}

void StoreState(const StoredSlot& slot, size_t first, std::span<const float> values,
                const StateContext& context) {
  SYNCLINE_CHECK(first % kStateRun == 0);
  std::byte* to = slot.memory + StateBytes(slot.type, first);
  switch (slot.type) {
    case StateType::kF32:
      if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
      return;
    case StateType::kBf16:
      return Kernel<StoreBf16Body>::Run(values.size(), values.data(), BitsOf(context),
                                        to);
    case StateType::kInt8:
      return Kernel<StoreCodesBody>::Run(values.size(), values.data(), &CodeOf(slot.kind),
                                         to);
  }
}

std::span<const float, 256> CodeValues(SlotKind kind) { return CodeOf(kind).values; }

}  // namespace syncline
