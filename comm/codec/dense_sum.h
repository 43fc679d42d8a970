// The kernel of Codec::DecodeAddAll for dense codecs. It adds up to eight encodings in
// one pass over the accumulator, instead of one pass for each.
//
//   struct Format {
//     // Value number i of an encoding.
//     static float Read(const std::byte* bytes, size_t i);
//   };
//   DenseSum<Format>::Add(parts, accumulator);
//
// Each element is summed in the order of the parts, so the bits equal those of adding one
// part after another. Include this file only in sources that are built with -O3.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "comm/base/isa.h"
#include "comm/codec/codec.h"

namespace syncline {

template <typename Format>
class DenseSum {
 public:
  // REQUIRES: each part encodes accumulator.size() values.
  static void Add(std::span<const WeightedBytes> parts, std::span<float> accumulator) {
    while (parts.size() >= 8) parts = AddFirst<8>(parts, accumulator);
    if (parts.size() >= 4) parts = AddFirst<4>(parts, accumulator);
    if (parts.size() >= 2) parts = AddFirst<2>(parts, accumulator);
    if (!parts.empty()) AddFirst<1>(parts, accumulator);
  }

 private:
  template <size_t kParts>
  struct Parts {
    std::array<const std::byte*, kParts> bytes = {};
    std::array<float, kParts> weights = {};
  };

  template <size_t kParts>
  static std::span<const WeightedBytes> AddFirst(std::span<const WeightedBytes> parts,
                                                 std::span<float> accumulator) {
    Parts<kParts> first;
    for (size_t k = 0; k < kParts; ++k) {
      first.bytes[k] = parts[k].bytes.data();
      first.weights[k] = parts[k].weight;
    }
    Kernel<AddParts<kParts>>::Run(accumulator.size(), first, accumulator.data());
    return parts.subspan(kParts);
  }

  template <size_t kParts>
  SYNCLINE_KERNEL void AddParts(size_t n, Parts<kParts> parts, float* accumulator) {
    AddEach(n, parts, accumulator, std::make_index_sequence<kParts>());
  }

  template <size_t kParts, size_t... k>
  SYNCLINE_KERNEL void AddEach(size_t n, const Parts<kParts>& parts, float* accumulator,
                               std::index_sequence<k...> /*unrolled*/) {
    const std::array<const std::byte*, kParts> bytes = parts.bytes;
    const std::array<float, kParts> weights = parts.weights;
    // The encodings do not overlap the sums.
#ifndef __clang__  // clang checks for overlap at run time, and warns of the pragma
#pragma GCC ivdep
#endif
    for (size_t i = 0; i < n; ++i) {
      float sum = accumulator[i];
      ((sum += weights[k] * Format::Read(bytes[k], i)), ...);
      accumulator[i] = sum;
    }
  }
};

}  // namespace syncline
