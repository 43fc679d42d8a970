// PowerSGD by tiles: a tile is part of its tensor's matrix, and travels as two thin
// factors of it (Vogels et al. 2019, arXiv 1905.13727).
//
//   P = orthonormal(M Q);  Q = M^T P;  decoded = P Q^T
//
// Q of the last step is where the next one starts, when the caller keeps it
// (EncodeContext::memory), and random columns otherwise. The last column starts from the
// tile's largest row, or column where those are fewer: so at least 1 / min(rows, columns)
// of the square arrives, whatever the tile and the start.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec,
//                             MakeLowRankCodec({.rank = 4})->ForMatrix(1000, 300));
//
// Little-endian layout of an encoding:
//
//   offset  bytes
//   0       4      columns of the matrix
//   4       4      column of the tile's first element
//   8       2      rank; 0 if the values follow as they are, where that is shorter
//   10      1      bytes of a number: 2 (BF16) or 4 (FP32)
//   11      1      zero
//   12             the columns of P, one after another, then those of Q; or the values
//
// A tile of n elements that starts at column c has rows c + n over columns, rounded up;
// what is missing of the first and last row counts as zero. Tiles with a value of 2^96 or
// more, or none of 2^-96 or more, have factors of zeros.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

inline constexpr uint32_t kMaxRank = 64;

enum class FactorType : uint8_t { kBf16 = 2, kFp32 = 4 };  // bytes of a number

struct LowRankOptions {
  uint32_t rank = 4;       // 1 to kMaxRank
  uint32_t columns = 256;  // of the tensor's matrix
  FactorType factors = FactorType::kBf16;
};

std::unique_ptr<Codec> MakeLowRankCodec(const LowRankOptions& options);

}  // namespace syncline
