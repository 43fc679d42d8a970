// What UCX's queues between processes of one host are made of, so that nobody but their
// user can open them.
//
// POSIX segments have mode 0600, and live in /dev/shm. System V segments need no room
// there, but UCX makes them with 0660: whoever is in the group can read and write what
// passes. They are for hosts whose /dev/shm is small (containers have 64 MiB unless told
// otherwise, which data loaders fill), and are taken from the group as soon as they are
// there.
#pragma once

#include <cstdint>

namespace syncline {

enum class QueueMemory { kPosix, kSysv };

// By how much /dev/shm can hold: the same for all processes of a host, which must agree.
// What is free changes from one to the next.
QueueMemory QueueMemoryFor(uint64_t dev_shm_bytes);

// What /dev/shm can hold; 0: there is none.
uint64_t DevShmBytes();
// What it has left.
uint64_t FreeDevShmBytes();

// The System V segments that this process has made are its user's alone from now on.
// Returns of how many others had the right before.
int TakeSegmentsFromGroup();

}  // namespace syncline
