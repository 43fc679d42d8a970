#include "comm/transport/ucx/queue_memory.h"

#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace syncline {
namespace {

constexpr char kDevShm[] = "/dev/shm";
// Docker's default size. A transport takes 4.1 MiB, and other programs use /dev/shm too.
constexpr uint64_t kSmallDevShm = uint64_t{64} << 20;

constexpr unsigned kUserOnly = 0600;
constexpr unsigned kOthers = 0077;

struct statvfs QueryDevShm() {
  struct statvfs info = {};
  if (statvfs(kDevShm, &info) != 0) return {};
  return info;
}

// Returns false if others had no access, or this process may not change the segment.
bool TakeFromGroup(int segment) {
  shmid_ds state = {};
  if (shmctl(segment, IPC_STAT, &state) != 0) return false;
  if (state.shm_cpid != getpid() || (state.shm_perm.mode & kOthers) == 0) return false;
  state.shm_perm.mode = kUserOnly;
  return shmctl(segment, IPC_SET, &state) == 0;
}

}  // namespace

QueueMemory QueueMemoryFor(uint64_t dev_shm_bytes) {
  return dev_shm_bytes > kSmallDevShm ? QueueMemory::kPosix : QueueMemory::kSysv;
}

uint64_t DevShmBytes() {
  const struct statvfs info = QueryDevShm();
  return uint64_t{info.f_blocks} * info.f_frsize;
}

uint64_t FreeDevShmBytes() {
  const struct statvfs info = QueryDevShm();
  return uint64_t{info.f_bavail} * info.f_frsize;
}

int TakeSegmentsFromGroup() {
  std::ifstream table("/proc/sysvipc/shm");
  std::string line;
  std::getline(table, line);  // names of the columns
  int taken = 0;
  while (std::getline(table, line)) {
    std::istringstream columns(line);
    int64_t key = 0;
    int segment = 0;
    if (columns >> key >> segment && TakeFromGroup(segment)) ++taken;
  }
  return taken;
}

}  // namespace syncline
