// A tile as a matrix, its products with thin factors, and orthonormal columns.
//
// Factors are stored column by column. The functions are part of kernels
// (comm/base/isa.h): every sum has a fixed order, so every instruction set gives the same
// bits. Include the file only in sources that are built with -O3.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/base/isa.h"
#include "comm/codec/decoded_into.h"

namespace syncline {

// `elements` of a matrix, row by row, starting at column `phase` of its first row.
struct TileShape {
  size_t elements = 0;
  size_t columns = 1;
  size_t phase = 0;

  size_t rows() const { return (phase + elements + columns - 1) / columns; }
};

// Elements [first, first + n) of a tile, which are in one row and start at `column`.
struct RowPiece {
  size_t first = 0;
  size_t n = 0;
  size_t column = 0;
};

[[gnu::always_inline]] inline RowPiece PieceOf(const TileShape& shape, size_t row) {
  const size_t first = row == 0 ? 0 : row * shape.columns - shape.phase;
  const size_t end = (row + 1) * shape.columns - shape.phase;
  return {.first = first,
          .n = (end < shape.elements ? end : shape.elements) - first,
          .column = row == 0 ? shape.phase : 0};
}

// Sums of products have this many parts.
inline constexpr size_t kDotLanes = 32;

template <typename Number>
SYNCLINE_KERNEL Number SumOfLanes(Number* lanes) {
  for (size_t half = kDotLanes / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

template <typename Number>
SYNCLINE_KERNEL Number Dot(const Number* a, const Number* b, size_t n) {
  Number lanes[kDotLanes] = {};
  const size_t whole = n - n % kDotLanes;
  for (size_t i = 0; i < whole; i += kDotLanes) {
    for (size_t j = 0; j < kDotLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  for (size_t i = whole; i < n; ++i) lanes[i - whole] += a[i] * b[i];
  return SumOfLanes(lanes);
}

// P = M Q.
SYNCLINE_KERNEL void TimesColumns(TileShape shape, const float* values, const float* q,
                                  size_t rank, double* p) {
  const size_t rows = shape.rows();
  for (size_t row = 0; row < rows; ++row) {
    const RowPiece piece = PieceOf(shape, row);
    for (size_t j = 0; j < rank; ++j) {
      p[j * rows + row] =
          Dot(values + piece.first, q + j * shape.columns + piece.column, piece.n);
    }
  }
}

// Q = M^T P.
SYNCLINE_KERNEL void TimesRows(TileShape shape, const float* values, const float* p,
                               size_t rank, float* q) {
  const size_t rows = shape.rows();
  for (size_t i = 0; i < rank * shape.columns; ++i) q[i] = 0;
  for (size_t row = 0; row < rows; ++row) {
    const RowPiece piece = PieceOf(shape, row);
    const float* __restrict x = values + piece.first;
    for (size_t j = 0; j < rank; ++j) {
      float* __restrict sums = q + j * shape.columns + piece.column;
      const float factor = p[j * rows + row];
      for (size_t i = 0; i < piece.n; ++i) sums[i] += factor * x[i];
    }
  }
}

// Gram-Schmidt, with two passes for each column, because one is inexact for nearly
// dependent columns. A column in the span of the others becomes zero.
SYNCLINE_KERNEL void Orthonormalize(size_t rows, size_t rank, double* p) {
  constexpr double kSpanned = 1e-6;
  for (size_t j = 0; j < rank; ++j) {
    double* __restrict column = p + j * rows;
    const double before = Dot(column, column, rows);
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t k = 0; k < j; ++k) {
        const double* __restrict other = p + k * rows;
        const double common = Dot(column, other, rows);
        for (size_t i = 0; i < rows; ++i) column[i] -= common * other[i];
      }
    }
    const double after = Dot(column, column, rows);
    const double scale =
        after > kSpanned * kSpanned * before ? 1 / __builtin_sqrt(after) : 0;
    for (size_t i = 0; i < rows; ++i) column[i] *= scale;
  }
}

// Sums the squares of each row and of each column, of values times `scale`.
SYNCLINE_KERNEL void SquaredNorms(TileShape shape, const float* values, float scale,
                                  float* of_rows, float* of_columns) {
  const size_t rows = shape.rows();
  for (size_t i = 0; i < shape.columns; ++i) of_columns[i] = 0;
  for (size_t row = 0; row < rows; ++row) {
    const RowPiece piece = PieceOf(shape, row);
    const float* __restrict x = values + piece.first;
    float* __restrict sums = of_columns + piece.column;
    float lanes[kDotLanes] = {};
    for (size_t first = 0; first < piece.n; first += kDotLanes) {
      const size_t n = piece.n - first < kDotLanes ? piece.n - first : kDotLanes;
      for (size_t j = 0; j < n; ++j) {
        const float scaled = x[first + j] * scale;
        const float square = scaled * scaled;
        sums[first + j] += square;
        lanes[j] += square;
      }
    }
    of_rows[row] = SumOfLanes(lanes);
  }
}

// Factors of a tile in FP32: decoded = P Q^T.
struct Factors {
  const float* p = nullptr;
  const float* q = nullptr;
  size_t rank = 0;
};

template <typename Into>
SYNCLINE_KERNEL void MultiplyFactors(TileShape shape, Factors factors, Into into,
                                     float* out) {
  constexpr size_t kStrip = 256;
  const size_t rows = shape.rows();
  float sums[kStrip];
  for (size_t row = 0; row < rows; ++row) {
    const RowPiece piece = PieceOf(shape, row);
    for (size_t first = 0; first < piece.n; first += kStrip) {
      const size_t rest = piece.n - first;
      const size_t n = rest < kStrip ? rest : kStrip;
      for (size_t i = 0; i < n; ++i) sums[i] = 0;
      for (size_t j = 0; j < factors.rank; ++j) {
        const float factor = factors.p[j * rows + row];
        const float* __restrict q = factors.q + j * shape.columns + piece.column + first;
        for (size_t i = 0; i < n; ++i) sums[i] += factor * q[i];
      }
      float* __restrict to = out + piece.first + first;
      for (size_t i = 0; i < n; ++i) Into::To(to[i], into.Weighted(sums[i]));
    }
  }
}

}  // namespace syncline
