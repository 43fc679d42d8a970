// What becomes of decoded values: kernels that decode take one of these, so that there is
// one loop for all.
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

// What an encoding lost, where the values were.
struct SubtractFrom {
  [[gnu::always_inline]] float Weighted(float value) const { return value; }
  [[gnu::always_inline]] static void To(float& value, float decoded) { value -= decoded; }
};

}  // namespace syncline
