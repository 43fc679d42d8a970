#include "comm/collective/group/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/base/status.h"

namespace syncline::collective {
namespace {

constexpr size_t kPage = 4096;

constexpr size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

constexpr size_t kHeaderBytes = RoundUp(sizeof(SharedHeader), kPage);

uint64_t RandomNonce() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // never 0
}

// Returns why a neighbour's memory cannot be opened.
std::string Explain(int error) {
  if (error == EACCES || error == EPERM) {
    return "this process may not access the memory of that one: /proc is mounted with "
           "hidepid, ptrace is restricted (Yama, seccomp), or that process has gained "
           "privileges";
  }
  return "its process has ended, /proc hides it (hidepid), or the store still holds what "
         "an earlier group wrote: use a fresh store or another name";
}

absl::Status NotTheGroups(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(
      path,
      " is not the memory of a group that is forming: the rank has ended, or the "
      "store still holds what an earlier group wrote: use a fresh store or another "
      "name"));
}

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

}  // namespace

// The rings of a pair fit the second-level cache together; with more ranks, more pairs
// share it.
SharedLayout SharedLayout::For(int ranks) {
  const size_t kib = ranks <= 4 ? 256 : ranks <= 16 ? 128 : 64;
  return {.ranks = ranks, .ring_bytes = kib << 10};
}

size_t SharedLayout::total_bytes() const {
  return kHeaderBytes + 2 * static_cast<size_t>(ranks) * (kPage + ring_bytes);
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Create(
    const SharedLayout& layout) {
  UniqueFd fd(memfd_create("syncline-group", MFD_CLOEXEC));
  if (!fd.valid()) return SystemError("cannot make shared memory for a group (memfd)");
  if (ftruncate(fd.get(), static_cast<off_t>(layout.total_bytes())) != 0) {
    return SystemError("cannot size shared memory for a group");
  }
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(fd.get(), F_OFD_SETLK, &lock) != 0) {
    return SystemError("cannot lock shared memory for a group");
  }
  std::unique_ptr<SharedSegment> segment(new SharedSegment(layout, std::move(fd)));
  SYNCLINE_RETURN_IF_ERROR(segment->Map());
  new (segment->memory_) SharedHeader();
  segment->header().nonce = RandomNonce();
  segment->address_ =
      absl::StrCat(getpid(), "/", segment->fd_.get(), "/", segment->header().nonce);
  return segment;
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Open(
    const std::string& address, const SharedLayout& layout) {
  const std::vector<std::string> parts = absl::StrSplit(address, '/');
  uint64_t nonce = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[2], &nonce) ||
      address.find_first_not_of("0123456789/") != std::string::npos) {
    return absl::InvalidArgumentError("the address of shared memory is malformed");
  }
  const std::string path = absl::StrCat("/proc/", parts[0], "/fd/", parts[1]);
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) {
    const int error = errno;
    return absl::UnavailableError(absl::StrCat("cannot open its shared memory, ", path,
                                               ": ", strerror(error), "; ",
                                               Explain(error)));
  }
  struct stat facts = {};
  if (fstat(fd.get(), &facts) != 0 ||
      static_cast<size_t>(facts.st_size) != layout.total_bytes()) {
    return NotTheGroups(path);
  }
  std::unique_ptr<SharedSegment> segment(new SharedSegment(layout, std::move(fd)));
  SYNCLINE_RETURN_IF_ERROR(segment->Map());
  const SharedHeader& header = segment->header();
  if (header.nonce != nonce || header.left.load(std::memory_order_seq_cst) != 0) {
    return NotTheGroups(path);
  }
  segment->address_ = address;
  return segment;
}

absl::Status SharedSegment::Map() {
  void* const memory = mmap(nullptr, layout_.total_bytes(), PROT_READ | PROT_WRITE,
                            MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) return SystemError("cannot map shared memory of a group");
  memory_ = static_cast<std::byte*>(memory);
  return absl::OkStatus();
}

SharedSegment::~SharedSegment() {
  if (memory_ != nullptr) munmap(memory_, layout_.total_bytes());
}

size_t SharedSegment::RingOffset(int writer, int kind) const {
  const size_t index = 2 * static_cast<size_t>(writer) + static_cast<size_t>(kind);
  return kHeaderBytes + index * (kPage + layout_.ring_bytes);
}

// New memory is zero, and so are the ring's counters.
SharedRing& SharedSegment::ring(int writer, int kind) const {
  return *reinterpret_cast<SharedRing*>(memory_ + RingOffset(writer, kind));
}

std::byte* SharedSegment::data(int writer, int kind) const {
  return memory_ + RingOffset(writer, kind) + kPage;
}

bool SharedSegment::OwnerIsDead() const {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void SharedSegment::Ring() const {
  if (header().sleeping.load(std::memory_order_seq_cst) != 0) RingAnyway();
}

void SharedSegment::RingAnyway() const {
  header().bell.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&header().bell), FUTEX_WAKE, INT_MAX,
          nullptr, nullptr, 0);
  if (ringer_ != nullptr && header().bell_name != 0) ringer_->Ring(header().bell_name);
}

std::string SharedPlace() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat processes = {};
  stat("/proc/self/ns/pid", &processes);
  struct stat users = {};
  stat("/proc/self/ns/user", &users);
  return absl::StrCat(boot, "/", processes.st_ino, "/", users.st_ino, "/", geteuid());
}

}  // namespace syncline::collective
