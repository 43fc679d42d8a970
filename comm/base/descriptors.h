// Limits of file descriptors (ulimit -n), for code that accepts connections.
#pragma once

#include <cstdint>

namespace syncline {

// Returns the limit of this process, RLIMIT_NOFILE.
uint64_t MostDescriptors();
// Returns the first descriptor of the last eighth. The kernel assigns the lowest free
// one, so from this descriptor on the process has few left. They are for everything
// except new connections.
int FirstOfTheLast();
// Returns true if `error`, an errno of accept, is a shortage of the host that may end.
bool IsShortOfDescriptors(int error);

}  // namespace syncline
