// Random bits that depend on a place, not on a moment: a hash of (seed, step, tensor,
// element). Any code that needs the bits of an element computes them. So results do not
// depend on strips, threads, instruction sets or the server that holds the element, and a
// repeated step repeats its random numbers.
//
//   const RandomBits random(seed, step, tensor, first_element);
//   for (uint32_t i = 0; i < n; ++i) y[i] = StochasticBf16FromFloat(x[i], random.At(i));
//
// The four numbers become two 32-bit keys once per strip, with the 64-bit finaliser of
// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
// 2014); each element then costs two rounds of multiply and xor-shift in 32-bit lanes,
// which every SIMD unit has. Not for secrets.
#pragma once

#include <cstdint>

namespace syncline {

class RandomBits {
 public:
  constexpr RandomBits(uint64_t seed, uint64_t step, uint32_t tensor,
                       uint64_t first_element)
      : first_(static_cast<uint32_t>(first_element)) {
    // The numbers are hashed one after the other, so that changes of two of them cannot
    // cancel each other.
    uint64_t key = Mixed(seed);
    key = Mixed(key ^ step);
    key = Mixed(key ^ tensor);
    key = Mixed(key ^ (first_element >> 32));
    key0_ = static_cast<uint32_t>(key);
    key1_ = static_cast<uint32_t>(key >> 32);
  }

  // Returns 32 uniform bits of element first_element + i. REQUIRES: both elements lie
  // between the same multiples of 2^32, as all elements of a tile do.
  [[gnu::always_inline]] constexpr uint32_t At(uint32_t i) const {
    // A bijection of the element's number for any keys. With one key alone the numbers of
    // two tensors would be the same sequence from different starts.
    uint32_t x = (first_ + i) * 0x9e3779b1u + key0_;
    x = (x ^ (x >> 16)) * 0x85ebca6bu ^ key1_;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
  }

 private:
  static constexpr uint64_t Mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  uint32_t first_;
  uint32_t key0_ = 0;
  uint32_t key1_ = 0;
};

}  // namespace syncline
