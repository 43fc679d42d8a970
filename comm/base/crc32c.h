// CRC-32C (Castagnoli, polynomial 0x1EDC6F41; RFC 3720 appendix B.4 has test vectors).
// Uses the SSE4.2 instruction where the CPU has it, with three interleaved streams
// because one alone is bound by the instruction's latency of 3 cycles; a table otherwise.
// Same result.
#pragma once

#include <cstdint>

#include "comm/base/buffer.h"

namespace syncline {

// CRC of `bytes` continued from `crc` (0 to start).
uint32_t Crc32c(ByteView bytes, uint32_t crc = 0);

// The path without special instructions, for tests and benchmarks to compare with.
uint32_t Crc32cPortable(ByteView bytes, uint32_t crc = 0);

}  // namespace syncline
