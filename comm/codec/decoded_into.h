// Policies that say what a kernel does with decoded values, so that one loop serves all.
//
//   for (size_t i = 0; i < n; ++i) Into::To(out[i], into.Weighted(decoded[i]));
#pragma once

namespace syncline {

struct Assign {
  [[gnu::always_inline]] float Weighted(float value) const { return value; }
  [[gnu::always_inline]] static void To(float& out, float decoded) { out = decoded; }
};

struct AddWeighted {
  float weight = 1;

  [[gnu::always_inline]] float Weighted(float value) const { return weight * value; }
  [[gnu::always_inline]] static void To(float& sum, float weighted) { sum += weighted; }
};

// Leaves in place of each value what its encoding lost.
struct SubtractFrom {
  [[gnu::always_inline]] float Weighted(float value) const { return value; }
  [[gnu::always_inline]] static void To(float& value, float decoded) { value -= decoded; }
};

}  // namespace syncline
