// Wakes a sleeping process of this host: a datagram socket that is known by a random
// number.
//
// Anybody on the host may ring; a ring says no more than "look again". Nothing is left
// behind in the file system. Processes that share memory but no network namespace do not
// hear each other: a sleeper must look by itself now and then.
//
// Thread safety: a Ringer any thread, a Bell one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace syncline {

class Bell {
 public:
  static absl::StatusOr<std::unique_ptr<Bell>> Create();
  ~Bell();

  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  uint64_t name() const { return name_; }

  // Readable after a ring, until Hush().
  int fd() const { return fd_; }
  void Hush();

 private:
  Bell(int fd, uint64_t name) : fd_(fd), name_(name) {}

  const int fd_;
  const uint64_t name_;
};

class Ringer {
 public:
  Ringer();
  ~Ringer();

  Ringer(const Ringer&) = delete;
  Ringer& operator=(const Ringer&) = delete;

  // Does nothing when there is no such bell, or it rings already.
  void Ring(uint64_t name) const;

 private:
  const int fd_;
};

}  // namespace syncline
