// What is said about backups of servers in the memory of other servers (ADR 29,
// job_backups.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/base/secret_key.h"
#include "comm/transport/tcp/member_key.h"

namespace syncline {

// A process that holds the backup of that server of the job (ADR 29).
struct StandInFor {
  uint32_t job = 0;
  uint32_t server = 0;
  uint32_t order = 0;  // of HoldBackup: that of another one is no such stand-in
};
// As whom a server sends records to its backup, and by which keys.
struct BackupPair {
  ServerIdentity sender = {};
  uint64_t session_key = 0;
  SecretKey key = {};
};

// ---- What servers say ----

// Of a server: its backup cannot be reached. Of a stand-in: it cannot go on.
struct BackupLost {
  uint32_t job = 0;
  std::string reason = {};
};

// Of a server: a backup that began later than its shards has all that they are.
struct BackedUp {
  uint32_t job = 0;
  uint64_t session_key = 0;  // of BackupAt
};

// Of a server: it is to end, and waits until backups elsewhere could take its places.
struct Drain {};

// ---- What the coordinator says ----

// The server is to start a stand-in for that one, with so many engines.
struct HoldBackup {
  uint32_t job = 0;
  uint32_t server = 0;
  uint32_t engines = 0;
  uint32_t order = 0;  // of a number of its own
};
// Where the server's records go.
struct BackupAt {
  uint32_t job = 0;
  std::vector<std::string> addresses = {};  // of each engine
  BackupPair pair = {};
  bool anew = false;  // it begins now: what the shards are goes first, then BackedUp
};
// It goes on without one. That it does is stored.
struct BackupGone {
  uint32_t job = 0;
  std::string reason = {};
};
// They could; or there is nothing to wait for.
struct Drained {};
// It is to end, as SIGTERM would make it: an operator wants that.
struct EndServer {};
// The server is dead: its stand-in serves its shards.
struct TakeOver {
  uint32_t job = 0;
};

}  // namespace syncline
