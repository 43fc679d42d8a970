// The capabilities of this machine, printed by `syncline doctor` and beside benchmark
// results, which mean little without them.
#pragma once

#include <string>

#include "comm/base/buffer.h"

namespace syncline {

struct MachineInfo {
  // Cores this process may use (its affinity mask and quota), not those of the host.
  int cores = 0;
  // Instruction-set level that the kernels use (comm/base/isa.h).
  std::string isa;
  // Bytes read plus bytes written per second, in 1e9, when one thread copies 256 MiB: the
  // bound of every memory-bound kernel. The best of several copies.
  double copy_gbs = 0;
};

// Measures the machine. Takes about a quarter of a second, and 512 MiB of memory
// meanwhile.
MachineInfo MeasureMachine();

// Returns the same without the measurement: returns at once, and copy_gbs is 0.
MachineInfo DescribeMachine();

// Copies with stores that bypass the caches, so that it moves only what it reads and
// writes. libc's memcpy does so only on some CPUs. Otherwise each written line is read
// first, and a third of the traffic would not be counted. REQUIRES: equal sizes, a
// multiple of 16 bytes, and addresses aligned to 16.
void StreamCopy(MutableByteView to, ByteView from);

}  // namespace syncline
