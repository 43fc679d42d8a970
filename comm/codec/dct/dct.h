// A discrete cosine transform before a sparse codec, as in DeMo (Peng et al. 2024, arXiv
// 2411.19870): a few coefficients stand for what neighbours have in common.
//
//   SYNCLINE_ASSIGN_OR_RETURN(std::unique_ptr<Codec> top,
//                             MakeSparseCodec({.selector = {.chunk_log2 = 12}, ...}));
//   const auto codec = MakeDctCodec({.inner = std::move(top)})->ForMatrix(rows, columns);
//
// A tile is a part of its tensor's matrix. It is cut into pieces of at most 64 x 64
// (pieces.h), whose rows and columns are transformed by the orthonormal DCT-II
// (transform.h). The coefficients of all pieces follow one another, those of a piece
// column by column, and are encoded by the inner codec like a tile of values. As the
// transform keeps lengths, the largest coefficients lose the least of |x|^2.
//
// Little-endian layout of an encoding:
//
//   offset  bytes
//   0       4      columns of the matrix
//   4       4      column of the tile's first element
//   8       2      CodecId of the inner codec
//   10      1      log2 of the longest side of a piece: 6
//   11      1      zero
//   12      rest   the coefficients, as the inner codec encodes a tile
//
// Tiles with a value of 2^96 or more have coefficients of zero, since sums might be
// infinite.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/codec/codec.h"

namespace syncline {

struct DctOptions {
  std::string name = "dct";                      // Codec::name
  std::shared_ptr<const Codec> inner = nullptr;  // takes whole tiles, keeps no memory
  uint32_t columns = 256;                        // of the tensor's matrix
};

// REQUIRES: an inner codec.
std::unique_ptr<Codec> MakeDctCodec(DctOptions options);

}  // namespace syncline
