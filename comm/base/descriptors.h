// Descriptors (ulimit -n) that a process has left, for those that take connections in.
#pragma once

#include <cstdint>

namespace syncline {

// How many this process may have: RLIMIT_NOFILE.
uint64_t MostDescriptors();
// From this descriptor on the process has few left, the last eighth, which is for everything
// but new connections: the kernel gives the lowest first.
int FirstOfTheLast();
// Whether `error`, an errno of accept, is a lack of the host's that may end.
bool IsShortOfDescriptors(int error);

}  // namespace syncline
