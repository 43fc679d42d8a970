// A disk that fails on order, and records what a power cut would leave on it. failing_disk.py loads it into a
// server (LD_PRELOAD), gives the orders, and makes the power cuts.
//
//   CHAOS_DISK     the folder whose files are on that disk
//   CHAOS_ORDERS   a folder beside it:
//     order          how it fails now, one of the words below; no file: it works
//     faults         a byte for each fault
//     synced/INODE   for a file, the number of bytes on the disk; for a folder, lines "INODE NAME"
//     lost/INODE     a sync of this file has failed, so everything written to it now is lost
//
//   full          writes fail with ENOSPC
//   write-fails   writes fail with EIO
//   short         writes take half of the bytes
//   sync-fails    syncs fail with EIO; as in Linux, a later successful sync saves nothing
//   slow          a sync takes 300 ms
//   stuck         a sync waits until the order changes
//   lies          a sync saves nothing, and reports success
//
// Nothing is really synced: kill -9 does not affect the page cache, and the power cut is simulated.
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE // it would make the functions below inline
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int IsOnDisk(int fd) {
  const char* const disk = getenv("CHAOS_DISK");
  char link[40];
  char path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const int before = errno;
  const ssize_t bytes = readlink(link, path, sizeof path - 1);
  errno = before;
  if (disk == NULL || bytes <= 0) return 0;
  path[bytes] = 0;
  const size_t prefix = strlen(disk);
  return strncmp(path, disk, prefix) == 0 && (path[prefix] == '/' || path[prefix] == 0);
}

// Sets `path` to a file in CHAOS_ORDERS.
static void Name(char path[PATH_MAX], const char* name) {
  const char* const orders = getenv("CHAOS_ORDERS");
  snprintf(path, PATH_MAX, "%s/%s", orders == NULL ? "/nowhere" : orders, name);
}

static void NameOf(char path[PATH_MAX], const char* folder, ino_t inode) {
  char name[64];
  snprintf(name, sizeof name, "%s/%llu", folder, (unsigned long long)inode);
  Name(path, name);
}

static int IsOrdered(const char* what) {
  char path[PATH_MAX];
  char order[32] = "";
  Name(path, "order");
  const int before = errno;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd >= 0) {
    if (read(fd, order, sizeof order - 1) < 0) order[0] = 0;
    close(fd);
  }
  errno = before;
  return strcmp(order, what) == 0;
}

// Writes all bytes in one call, so that a kill leaves all of them or none.
static void Put(const char* path, int flags, const char* bytes, size_t size) {
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
  if (fd < 0 || syscall(SYS_write, fd, bytes, size) != (long)size) abort();
  close(fd);
}

static int Fault(int error) {
  char path[PATH_MAX];
  Name(path, "faults");
  Put(path, O_APPEND, "x", 1);
  errno = error;
  return -1;
}

// ---- Writing ----

// Returns how many of `bytes` a write may take; -1: it fails.
static ssize_t MayWrite(int fd, size_t bytes) {
  if (bytes == 0 || !IsOnDisk(fd)) return (ssize_t)bytes;
  if (IsOrdered("full")) return Fault(ENOSPC);
  if (IsOrdered("write-fails")) return Fault(EIO);
  if (bytes == 1 || !IsOrdered("short")) return (ssize_t)bytes;
  Fault(0);
  return (ssize_t)(bytes / 2);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  const ssize_t taken = MayWrite(fd, bytes);
  return taken < 0 ? taken : syscall(SYS_write, fd, data, (size_t)taken);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  const ssize_t taken = MayWrite(fd, bytes);
  return taken < 0 ? taken : syscall(SYS_pwrite64, fd, data, (size_t)taken, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  return pwrite(fd, data, bytes, offset);
}

// Opens a file. A new file may have the inode of a deleted one, so its records are reset.
static int Open(const char* path, int flags, mode_t mode) {
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
  struct stat about;
  if (fd < 0 || (flags & O_CREAT) == 0 || !IsOnDisk(fd)) return fd;
  if (fstat(fd, &about) == 0 && about.st_size == 0) {
    char name[PATH_MAX];
    NameOf(name, "synced", about.st_ino);
    unlink(name);
    NameOf(name, "lost", about.st_ino);
    unlink(name);
  }
  return fd;
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return Open(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return Open(path, flags, mode);
}

// ---- Syncing ----

static void SaveFolder(int fd, const struct stat* about) {
  char list[1 << 16];
  char path[PATH_MAX];
  char unfinished[PATH_MAX];
  size_t used = 0;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  DIR* const folder = opendir(path);
  if (folder == NULL) abort();
  for (const struct dirent* one; (one = readdir(folder)) != NULL;) {
    const size_t left = sizeof list - used;
    const int bytes = snprintf(list + used, left, "%llu %s\n", (unsigned long long)one->d_ino, one->d_name);
    if (bytes < 0 || (size_t)bytes >= left) abort();
    used += (size_t)bytes;
  }
  closedir(folder);
  NameOf(path, "synced", about->st_ino);
  if (snprintf(unfinished, sizeof unfinished, "%s.%d", path, (int)gettid()) >= (int)sizeof unfinished) abort();
  Put(unfinished, O_TRUNC, list, used);
  if (rename(unfinished, path) != 0) abort();
}

static void SaveFile(const struct stat* about) {
  char path[PATH_MAX];
  char bytes[32];
  NameOf(path, "lost", about->st_ino);
  if (access(path, F_OK) == 0) return;
  NameOf(path, "synced", about->st_ino);
  snprintf(bytes, sizeof bytes, "%20lld", (long long)about->st_size);
  Put(path, 0, bytes, strlen(bytes));
}

static int Sync(int fd, long call) {
  struct stat about;
  if (!IsOnDisk(fd)) return (int)syscall(call, fd);
  if (fstat(fd, &about) != 0) return -1;
  if (IsOrdered("sync-fails")) {
    char path[PATH_MAX];
    NameOf(path, "lost", about.st_ino);
    Put(path, 0, "", 0);
    return Fault(EIO);
  }
  if (IsOrdered("slow")) {
    const struct timespec delay = {.tv_nsec = 300000000};
    Fault(0);
    nanosleep(&delay, NULL);
  }
  if (IsOrdered("stuck")) {
    const struct timespec delay = {.tv_nsec = 10000000};
    Fault(0);
    while (IsOrdered("stuck")) nanosleep(&delay, NULL);
  }
  if (IsOrdered("lies")) {
    Fault(0);
    return 0;
  }
  if (S_ISDIR(about.st_mode)) {
    SaveFolder(fd, &about);
  } else {
    SaveFile(&about);
  }
  return 0;
}

int fsync(int fd) { return Sync(fd, SYS_fsync); }

int fdatasync(int fd) { return Sync(fd, SYS_fdatasync); }
