// Accepts the connections of a gRPC server: listens, passes sockets to gRPC, and reserves
// room for members. gRPC 1.51 itself accepts without limit, and after it has once run out
// of descriptors it never accepts again.
//
// A connection counts as waiting until LetIn reports that an admitted peer has made a
// call on it. When too many wait, the oldest connection of the source with the most
// waiting ones is closed (an IPv6 /64 is one source). So a flood from one address only
// displaces itself. gRPC closes connections that wait for long (ServerOptions). While the
// process has few descriptors left, no connection is accepted and none is closed here.
//
//   auto door = *FrontDoor::Open(address, {.take = [&](int fd, int listener) { … }});
//   door->Start();
//   door->LetIn(context.peer());
//   door->Close();
//
// Thread safety: any thread. Has one thread of its own.
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

// Returns how many connections may wait if the process may have `descriptors`. Each takes
// two descriptors, and members need most of them.
size_t MostWaiting(uint64_t descriptors);
size_t MostWaiting();  // in this process

struct FrontDoorOptions {
  // Takes ownership of the non-blocking descriptor. Called on the door's thread.
  std::function<void(int fd, int listener)> take = nullptr;
  // Called when a connection from `source` was closed to make room, on the door's thread.
  std::function<void(const std::string& source)> on_crowded = [](const std::string&) {};
  size_t most_waiting = MostWaiting();
  int first_of_the_last = FirstOfTheLast();
  // Data that a peer does not acknowledge for this long ends its connection
  // (TCP_USER_TIMEOUT).
  absl::Duration failure_timeout = absl::Seconds(10);
  Logger log = {};
};

class FrontDoor {
 public:
  // Listens on all addresses that `address` resolves to; sets its port if that is 0.
  // Fails like ListenAtAll (address.h), and with Unavailable when there is no descriptor
  // left.
  static absl::StatusOr<std::unique_ptr<FrontDoor>> Open(HostPort& address,
                                                         FrontDoorOptions options);
  ~FrontDoor() { Close(); }
  FrontDoor(const FrontDoor&) = delete;
  FrontDoor& operator=(const FrontDoor&) = delete;

  // Begins to accept connections. Call once.
  void Start();
  // Marks the connection of `peer` as admitted. `peer` is gRPC's name, such as
  // "ipv4:10.0.0.7:41234".
  void LetIn(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Stops accepting. Connections that gRPC has already stay open.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  size_t waiting() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    // duplicate of gRPC's descriptor, to end the connection without a race
    UniqueFd copy = {};
    SocketName peer = {};
  };
  using Number = uint64_t;  // increasing; the oldest has the lowest

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

  // Returns the source of the connection that was closed; empty when there was room.
  std::string Add(Waiting waiting, std::string source) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns its source.
  std::string End(Number number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Number number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<UniqueFd> listeners_;
  const FrontDoorOptions options_;
  const Events events_;
  uint64_t shortages_ = 0;  // used by the thread only

  mutable absl::Mutex mutex_;
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  Number next_ ABSL_GUARDED_BY(mutex_);
  std::map<Number, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  Crowd crowd_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Number> numbers_ ABSL_GUARDED_BY(mutex_);  // by SocketName

  std::thread thread_;
};

}  // namespace syncline
