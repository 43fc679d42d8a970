// A Bell wakes a sleeping process of this host. It is a datagram socket whose name is a
// random number.
//
// Any process on the host may ring; a ring only means "look again". Nothing is left
// behind in the file system. Processes that share memory but not a network namespace
// cannot ring each other's bells, so a sleeper must also look by itself now and then.
//
// Thread safety: any thread may use a Ringer; one thread, a Bell.
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

  // The descriptor is readable after a ring, until Hush().
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

  // Does nothing if there is no such bell or it is ringing already.
  void Ring(uint64_t name) const;

 private:
  const int fd_;
};

}  // namespace syncline
