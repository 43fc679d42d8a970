// The memory of UCX's queues between processes of one host. Only their user must be able
// to open it.
//
// POSIX segments have mode 0600 and use space in /dev/shm. System V segments do not, but
// UCX makes them with mode 0660, so that everyone in the group could read and write
// messages. They are for hosts with a small /dev/shm, such as containers: these have 64
// MiB by default, which data loaders fill. Their group loses access as soon as they
// exist.
//
// Thread safety: functions without state.
#pragma once

#include <cstdint>

namespace syncline {

enum class QueueMemory { kPosix, kSysv };

// Chooses by the size of /dev/shm, not by its free space. All processes of a host must
// choose the same, and the free space changes from one to the next.
QueueMemory QueueMemoryFor(uint64_t dev_shm_bytes);

// Returns the size of /dev/shm. 0: there is none.
uint64_t DevShmBytes();
// Returns the free space of /dev/shm.
uint64_t FreeDevShmBytes();

// Removes the access of other users to System V segments that this process has made.
// Returns how many segments others could access before.
int TakeSegmentsFromGroup();

}  // namespace syncline
