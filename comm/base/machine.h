// What this machine can do: printed by `syncline doctor`, and beside every benchmark
// figure, which means little without it.
#pragma once

#include <string>

#include "comm/base/buffer.h"

namespace syncline {

struct MachineInfo {
  // Cores this process may use (its affinity mask and quota), not those of the host.
  int cores = 0;
  // Instruction-set level that the kernels use (comm/base/isa.h).
  std::string isa;
  // Bytes read plus bytes written per second, in 1e9, of one thread that copies 256 MiB:
  // the bound of every memory-bound kernel. The best of several copies.
  double copy_gbs = 0;
};

// Takes about a quarter of a second and 512 MiB of memory while it measures.
MachineInfo MeasureMachine();

// The same without the measurement: at once, and copy_gbs is 0.
MachineInfo DescribeMachine();

// A copy that writes around the caches, so that it moves no more than it reads and
// writes. libc's memcpy decides by the CPU whether it does so; where it does not, each
// written line is read first, and a third of the bandwidth would not be counted.
// REQUIRES: both of one size, a multiple of 16 bytes, at addresses that are too.
void StreamCopy(MutableByteView to, ByteView from);

}  // namespace syncline
