// Computes CRC-32C (Castagnoli, polynomial 0x1EDC6F41; RFC 3720 appendix B.4 has test
// vectors). Uses the SSE4.2 instruction if the CPU has it, and otherwise a table, with
// the same result. The instruction works on three interleaved streams, because one alone
// is limited by its latency of 3 cycles.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "comm/base/buffer.h"

namespace syncline {

// Returns the CRC of `bytes`, continued from `crc` (0 to start).
uint32_t Crc32c(ByteView bytes, uint32_t crc = 0);

// Computes the same without special instructions, for tests and benchmarks to compare
// with.
uint32_t Crc32cPortable(ByteView bytes, uint32_t crc = 0);

}  // namespace syncline
