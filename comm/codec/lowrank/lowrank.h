// PowerSGD by tiles: a tile is a part of its tensor's matrix, and is sent as two thin
// factors (Vogels et al. 2019, arXiv 1905.13727).
//
//   P = orthonormal(M Q);  Q = M^T P;  decoded = P Q^T
//
// Encoding starts from the Q of the last step if the caller keeps it
// (EncodeContext::memory), and from random columns otherwise. The last column starts from
// the tile's largest row, or from its largest column if there are fewer columns than
// rows. So at least 1 / min(rows, columns) of the squared norm is sent for any tile and
// any start.
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
// A tile of n elements that starts at column c has (c + n) / columns rows, rounded up;
// missing elements of the first and last row count as zero. Tiles with a value of 2^96 or
// more, or with no value of 2^-96 or more, have factors of zeros.
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
