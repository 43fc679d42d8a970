// The Walsh-Hadamard transform of 2^k values in place, in O(n log n) additions:
//
//   // values = H values, H[i][j] = (-1)^(number of ones in i & j)
//   Hadamard(values, 4096);
//
// H is symmetric and H H = n, so H / sqrt(n) is a rotation and its own inverse.
//
// The functions are part of kernels (comm/base/isa.h): plain loops in a fixed order, so
// every instruction set gives the same bits. Include the file only in sources that are
// built with -O3.
#pragma once

#include <cstddef>

#include "comm/base/isa.h"

namespace syncline {

[[gnu::always_inline]] inline void SumAndDifference(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

// Transforms one bit of the index: pairs at distance h. REQUIRES: n is a multiple of 2 h.
SYNCLINE_KERNEL void Butterflies2(float* values, size_t n, size_t h) {
  for (size_t i = 0; i < n; i += 2 * h) {
    float* x = values + i;
#ifndef __clang__  // j < h: all differ
#pragma GCC ivdep
#endif
    for (size_t j = 0; j < h; ++j) {
      float a = x[j];
      float b = x[j + h];
      SumAndDifference(a, b);
      x[j] = a;
      x[j + h] = b;
    }
  }
}

// Transforms three bits in one pass over memory: eight values at distance h, in
// registers. They are written out because GCC keeps an array of eight in memory and does
// not vectorise.
SYNCLINE_KERNEL void Butterflies8(float* values, size_t n, size_t h) {
  for (size_t i = 0; i < n; i += 8 * h) {
    float* x = values + i;
#ifndef __clang__  // j < h: all differ
#pragma GCC ivdep
#endif
    for (size_t j = 0; j < h; ++j) {
      float v0 = x[j], v1 = x[j + h], v2 = x[j + 2 * h], v3 = x[j + 3 * h];
      float v4 = x[j + 4 * h], v5 = x[j + 5 * h], v6 = x[j + 6 * h], v7 = x[j + 7 * h];
      SumAndDifference(v0, v1);
      SumAndDifference(v2, v3);
      SumAndDifference(v4, v5);
      SumAndDifference(v6, v7);
      SumAndDifference(v0, v2);
      SumAndDifference(v1, v3);
      SumAndDifference(v4, v6);
      SumAndDifference(v5, v7);
      SumAndDifference(v0, v4);
      SumAndDifference(v1, v5);
      SumAndDifference(v2, v6);
      SumAndDifference(v3, v7);
      x[j] = v0;
      x[j + h] = v1;
      x[j + 2 * h] = v2;
      x[j + 3 * h] = v3;
      x[j + 4 * h] = v4;
      x[j + 5 * h] = v5;
      x[j + 6 * h] = v6;
      x[j + 7 * h] = v7;
    }
  }
}

// Transforms the four lowest bits, whose values are neighbours in a vector. In rows of a
// transposed 16 x 16 square they are not. REQUIRES: n is a multiple of 256.
SYNCLINE_KERNEL void ButterfliesOfNeighbours(float* values, size_t n) {
  constexpr size_t kSide = 16;
  for (size_t i = 0; i < n; i += kSide * kSide) {
    float* __restrict x = values + i;
    float square[kSide * kSide];
    for (size_t row = 0; row < kSide; ++row) {
      for (size_t j = 0; j < kSide; ++j) square[j * kSide + row] = x[row * kSide + j];
    }
    Butterflies8(square, kSide * kSide, kSide);
    Butterflies2(square, kSide * kSide, 8 * kSide);
    for (size_t row = 0; row < kSide; ++row) {
      for (size_t j = 0; j < kSide; ++j) x[row * kSide + j] = square[j * kSide + row];
    }
  }
}

// REQUIRES: n is a power of two.
SYNCLINE_KERNEL void Hadamard(float* values, size_t n) {
  size_t h = 1;
  if (n >= 256) {
    ButterfliesOfNeighbours(values, n);
    h = 16;
    for (; 8 * h <= n; h *= 8) Butterflies8(values, n, h);
  }
  for (; h < n; h *= 2) Butterflies2(values, n, h);
}

}  // namespace syncline
