// Where a gRPC server takes connections in: it listens, hands what comes to gRPC, and keeps
// room for members. gRPC 1.51 by itself takes in whoever comes, and once it found no
// descriptor left it listens no more, ever.
//
// A connection waits until LetIn says that somebody who may come in has called by it. Where
// as many wait as may, the oldest of the source that has most of them goes (of IPv6 a /64 is
// one source), so that a flood from one address crowds out itself. gRPC ends those that wait
// for long (ServerOptions), and closes those that went a little later: while the process has
// few descriptors left nobody is taken in, and nobody goes.
//
//   auto door = *FrontDoor::Open(address, {.take = [&](int fd, int listener) { … }});
//   door->Start();
//   door->LetIn(context.peer());
//   door->Close();
//
// Thread safety: any thread. Threads: one of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/crowd.h"
#include "comm/base/descriptors.h"
#include "comm/base/log.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/address.h"
#include "comm/rpc/host_sockets.h"

namespace syncline {

// How many connections may wait in a process that may have so many descriptors: each takes
// two, and members need most of them.
size_t MostWaiting(uint64_t descriptors);
size_t MostWaiting();  // in this process

struct FrontDoorOptions {
  // Owns the descriptor, which does not block. On the door's thread.
  std::function<void(int fd, int listener)> take = nullptr;
  // A connection from there had to make room. On the door's thread.
  std::function<void(const std::string& source)> on_crowded = [](const std::string&) {};
  size_t most_waiting = MostWaiting();
  int first_of_the_last = FirstOfTheLast();
  // What a peer does not acknowledge for so long ends its connection (TCP_USER_TIMEOUT).
  absl::Duration failure_timeout = absl::Seconds(10);
  Logger log = {};
};

class FrontDoor {
 public:
  // Listens at all addresses that `address` names, and fills in its port when that is 0.
  // Errors as Listen (address.h); Unavailable where there is no descriptor for it.
  static absl::StatusOr<std::unique_ptr<FrontDoor>> Open(HostPort& address,
                                                         FrontDoorOptions options);
  ~FrontDoor() { Close(); }
  FrontDoor(const FrontDoor&) = delete;
  FrontDoor& operator=(const FrontDoor&) = delete;

  // Nobody is taken in before. Once.
  void Start();
  // From now on this connection does not wait, as gRPC calls it: "ipv4:10.0.0.7:41234".
  void LetIn(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes nobody in any more. Connections that were handed over stay.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  size_t waiting() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    UniqueFd copy = {};  // of gRPC's descriptor, to end the connection without a race
    SocketName peer = {};
  };
  using Number = uint64_t;  // grows: the oldest has the least

  struct Events {
    UniqueFd epoll;
    UniqueFd wake;
  };
  FrontDoor(std::vector<UniqueFd> listeners, Events events, FrontDoorOptions options);

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Watch(int listener, int operation, uint32_t events);
  void AcceptFrom(int listener) ABSL_LOCKS_EXCLUDED(mutex_);
  void MakeRoom() ABSL_LOCKS_EXCLUDED(mutex_);
  void Pause() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsClosing() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The source of who had to go; empty when there was room.
  std::string Add(Waiting waiting, std::string source) ABSL_LOCKS_EXCLUDED(mutex_);
  // Its source.
  std::string End(Number number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Number number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<UniqueFd> listeners_;
  const FrontDoorOptions options_;
  const Events events_;
  uint64_t shortages_ = 0;  // on the thread

  mutable absl::Mutex mutex_;
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  Number next_ ABSL_GUARDED_BY(mutex_);
  std::map<Number, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  Crowd crowd_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Number> numbers_ ABSL_GUARDED_BY(mutex_);  // by SocketName

  std::thread thread_;
};

}  // namespace syncline
