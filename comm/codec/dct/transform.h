// The orthonormal DCT-II of 2^k values, 1 to 64, and its inverse, of many columns at once:
//
//   y_k = sqrt(2 / N) e_k sum_j x_j cos(pi k (2 j + 1) / (2 N)),  e_0 = sqrt(1/2), e_k = 1
//
// It is a product of rotations of two values each (Plonka and Tasche 2005, "Fast and
// numerically stable algorithms for discrete cosine transforms", Linear Algebra and its
// Applications 394), in O(N log N) operations. The compiler makes the list of rotations
// of each size (DctRotations). The inverse takes the same ones backwards. As rotations
// keep lengths, no intermediate value and no error grows beyond the length of the input.
//
// The kernels (comm/base/isa.h) are plain loops over columns, with a fixed order in each
// of them, so every instruction set gives the same bits. Angles are computed by the
// compiler, since libraries of other machines may round cosines otherwise. Include the
// file only in sources that are built with -O3.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "comm/base/isa.h"

namespace syncline {

inline constexpr size_t kMaxDctSize = 64;

// Values lie in rows of this many floats, of which the first columns are used: a multiple
// of kDctLanes.
inline constexpr size_t kDctRow = 64;
inline constexpr size_t kDctLanes = 16;

// Rows u and v become cosine u + sine v and sign (cosine v - sine u).
struct DctRotation {
  uint8_t u = 0;
  uint8_t v = 0;
  float cosine = 1;
  float sine = 0;
  float signed_cosine = 1;
  float signed_sine = 0;
};

// The rotations of a DCT of `size` rows.
class DctRotations {
 public:
  constexpr explicit DctRotations(size_t size) : size_(size) {
    Rows rows = {.count = size};
    for (size_t i = 0; i < size; ++i) rows.at[i] = static_cast<uint8_t>(i);
    const Rows y = Dct2(rows);
    for (size_t k = 0; k < kMaxDctSize; ++k) {
      row_of_[k] = k < size ? y.at[k] : static_cast<uint8_t>(k);
    }
  }

  constexpr size_t size() const { return size_; }
  constexpr size_t count() const { return count_; }
  constexpr const DctRotation& operator[](size_t i) const { return rotations_[i]; }
  // Returns the row in which coefficient k is after all rotations. Rows beyond the size
  // stay where they are.
  constexpr size_t RowOf(size_t k) const { return row_of_[k]; }

 private:
  static constexpr double kPi = 3.14159265358979323846;
  static constexpr size_t kMost = 228;  // of 64 rows

  // Numbers of rows, in the order of what they hold.
  struct Rows {
    std::array<uint8_t, kMaxDctSize> at = {};
    size_t count = 0;
  };

  // Taylor series, exact to float64 for angles up to pi / 4.
  static constexpr double CosineOf(double angle) {
    double term = 1;
    double sum = 0;
    for (int i = 0; i <= 20; i += 2) {
      sum += term;
      term *= -angle * angle / ((i + 1.0) * (i + 2.0));
    }
    return sum;
  }
  static constexpr double SineOf(double angle) {
    double term = angle;
    double sum = 0;
    for (int i = 1; i <= 21; i += 2) {
      sum += term;
      term *= -angle * angle / ((i + 1.0) * (i + 2.0));
    }
    return sum;
  }

  constexpr void Rotate(uint8_t u, uint8_t v, double angle, float sign) {
    const auto cosine = static_cast<float>(CosineOf(angle));
    const auto sine = static_cast<float>(SineOf(angle));
    rotations_[count_++] = {u, v, cosine, sine, sign * cosine, sign * sine};
  }
  // Rows become (u + v) / sqrt(2) and (u - v) / sqrt(2).
  constexpr void AddAndSubtract(uint8_t u, uint8_t v) { Rotate(u, v, kPi / 4, -1); }

  // Changes the sign of a row, in the last rotation that writes it.
  constexpr void Negate(uint8_t row) {
    size_t last = count_ - 1;
    while (rotations_[last].u != row && rotations_[last].v != row) --last;
    DctRotation& rotation = rotations_[last];
    if (rotation.v == row) {
      rotation.signed_cosine = -rotation.signed_cosine;
      rotation.signed_sine = -rotation.signed_sine;
    } else {
      rotation.cosine = -rotation.cosine;
      rotation.sine = -rotation.sine;
    }
  }

  // A DCT-II of N values is one of N / 2 sums x_j + x_(N-1-j), which gives coefficients of
  // even number, and a DCT-IV of the differences, which gives the others. Returns the rows
  // of the coefficients.
  constexpr Rows Dct2(const Rows& x) {
    if (x.count == 1) return x;
    const size_t half = x.count / 2;
    Rows sums = {.count = half};
    Rows differences = {.count = half};
    for (size_t j = 0; j < half; ++j) {
      sums.at[j] = x.at[j];
      differences.at[j] = x.at[x.count - 1 - j];
      AddAndSubtract(sums.at[j], differences.at[j]);
    }
    const Rows even = Dct2(sums);
    const Rows odd = Dct4(differences);
    Rows y = {.count = x.count};
    for (size_t k = 0; k < half; ++k) {
      y.at[2 * k] = even.at[k];
      y.at[2 * k + 1] = odd.at[k];
    }
    return y;
  }

  // y_k = sqrt(2 / N) sum_j x_j cos(pi (2 j + 1) (2 k + 1) / (4 N)). With L = N / 2 and
  // angles t_j = pi (2 j + 1) / (4 N), A is the DCT-II of
  //   x_j cos(t_j) + x_(N-1-j) sin(t_j),
  // and C that of
  //   (-1)^j (x_(N-1-j) cos(t_j) - x_j sin(t_j)).
  // Then y_0 = A_0, y_(N-1) = -C_0, and for m = 1 to L - 1
  //   y_(2m) = (A_m + C_(L-m)) / sqrt(2),  y_(2m-1) = (A_m - C_(L-m)) / sqrt(2).
  constexpr Rows Dct4(const Rows& x) {
    if (x.count == 1) return x;
    const size_t half = x.count / 2;
    Rows a = {.count = half};
    Rows c = {.count = half};
    for (size_t j = 0; j < half; ++j) {
      a.at[j] = x.at[j];
      c.at[j] = x.at[x.count - 1 - j];
      const double angle =
          kPi * (2.0 * static_cast<double>(j) + 1) / (4.0 * static_cast<double>(x.count));
      Rotate(a.at[j], c.at[j], angle, j % 2 == 0 ? 1.0f : -1.0f);
    }
    a = Dct2(a);
    c = Dct2(c);
    Rows y = {.count = x.count};
    y.at[0] = a.at[0];
    y.at[x.count - 1] = c.at[0];
    Negate(c.at[0]);
    for (size_t m = 1; m < half; ++m) {
      y.at[2 * m] = a.at[m];
      y.at[2 * m - 1] = c.at[half - m];
      AddAndSubtract(a.at[m], c.at[half - m]);
    }
    return y;
  }

  size_t size_ = 1;
  size_t count_ = 0;
  std::array<DctRotation, kMost> rotations_ = {};
  std::array<uint8_t, kMaxDctSize> row_of_ = {};
};

inline constexpr std::array<DctRotations, 7> kDctRotations = {
    DctRotations(1),  DctRotations(2),  DctRotations(4), DctRotations(8),
    DctRotations(16), DctRotations(32), DctRotations(64)};

// REQUIRES: `size` is a power of two up to kMaxDctSize.
inline const DctRotations& DctRotationsOf(size_t size) {
  return kDctRotations[static_cast<size_t>(std::bit_width(size)) - 1];
}

// Transforms the first `columns` columns of rows 0 to rotations.size() - 1. Coefficient k
// is in row rotations.RowOf(k) afterwards.
SYNCLINE_KERNEL void ForwardDct(const DctRotations& rotations, size_t columns,
                                float* rows) {
  for (size_t step = 0; step < rotations.count(); ++step) {
    const DctRotation by = rotations[step];
    float* const u = rows + by.u * kDctRow;
    float* const v = rows + by.v * kDctRow;
    for (size_t first = 0; first < columns; first += kDctLanes) {
#ifndef __clang__  // u and v are different rows
#pragma GCC ivdep
#endif
      for (size_t i = first; i < first + kDctLanes; ++i) {
        const float a = u[i];
        const float b = v[i];
        u[i] = by.cosine * a + by.sine * b;
        v[i] = by.signed_cosine * b - by.signed_sine * a;
      }
    }
  }
}

// The inverse: coefficient k is in row rotations.RowOf(k) at first.
SYNCLINE_KERNEL void BackwardDct(const DctRotations& rotations, size_t columns,
                                 float* rows) {
  for (size_t step = rotations.count(); step-- > 0;) {
    const DctRotation by = rotations[step];
    float* const u = rows + by.u * kDctRow;
    float* const v = rows + by.v * kDctRow;
    for (size_t first = 0; first < columns; first += kDctLanes) {
#ifndef __clang__  // u and v are different rows
#pragma GCC ivdep
#endif
      for (size_t i = first; i < first + kDctLanes; ++i) {
        const float a = u[i];
        const float b = v[i];
        u[i] = by.cosine * a - by.signed_sine * b;
        v[i] = by.sine * a + by.signed_cosine * b;
      }
    }
  }
}

}  // namespace syncline
