// Cuts a tile into the pieces that are transformed, each on its own.
//
// A tile is a run of `elements` of a matrix, row by row, that starts at column `phase`.
// Its whole rows are cut into strips of 64 rows (the rest into 32, 16, ... 2), and strips
// into squares of 64 columns (the rest into 32, 16, ... 1). A single row, or a part of
// one at either end of the tile, is cut into pieces of 64 columns (the rest into 32, 16,
// ... 1); up to 64 such pieces of 64 columns, one after another, are treated together.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace syncline {

inline constexpr size_t kDctSide = 64;

struct DctTile {
  size_t elements = 0;
  size_t columns = 1;
  size_t phase = 0;  // below `columns`
};

// `height` rows of `width` elements, each `stride` after the one before. `width` is a
// power of two, and so is `height` if columns are transformed, too.
struct DctPiece {
  size_t first = 0;
  size_t stride = 0;
  size_t height = 1;
  size_t width = 1;
  bool transforms_columns = false;

  bool operator==(const DctPiece&) const = default;
};

// Returns the largest power of two up to `n` and kDctSide. REQUIRES: n > 0.
inline size_t DctSideOf(size_t n) { return std::min(kDctSide, std::bit_floor(n)); }

// Calls visit(piece) for pieces of elements [first, first + n), which are in one row.
template <typename Visit>
void VisitRow(size_t first, size_t n, const Visit& visit) {
  while (n > 0) {
    const size_t width = DctSideOf(n);
    const size_t height = std::clamp<size_t>(n / kDctSide, 1, kDctSide);
    visit(DctPiece{.first = first, .stride = width, .height = height, .width = width});
    first += height * width;
    n -= height * width;
  }
}

// Calls visit(piece) for all pieces. Together they have each element once.
template <typename Visit>
void VisitPieces(const DctTile& tile, const Visit& visit) {
  const size_t before =
      tile.phase == 0 ? 0 : std::min(tile.elements, tile.columns - tile.phase);
  VisitRow(0, before, visit);
  size_t first = before;
  for (size_t rows = (tile.elements - before) / tile.columns; rows > 0;) {
    const size_t height = DctSideOf(rows);
    if (height == 1) {
      VisitRow(first, tile.columns, visit);
    } else {
      for (size_t column = 0; column < tile.columns;) {
        const size_t width = DctSideOf(tile.columns - column);
        visit(DctPiece{.first = first + column,
                       .stride = tile.columns,
                       .height = height,
                       .width = width,
                       .transforms_columns = true});
        column += width;
      }
    }
    first += height * tile.columns;
    rows -= height;
  }
  VisitRow(first, tile.elements - first, visit);
}

}  // namespace syncline
