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

// Of a server of a job with journals and backups: its journal has ended, and it waits until
// it may go on without (JournalGone).
struct JournalLost {
  uint32_t job = 0;
  std::string reason = {};
};

// Likewise: its journal of that generation is whole.
struct JournalWhole {
  uint32_t job = 0;
  uint32_t generation = 0;
};

// Of a server: it is to end, and waits until backups elsewhere could take its places.
struct Drain {};

// ---- What the coordinator says ----

// The server is to start a stand-in for that one, with so many engines: one that holds its
// backup, or one that restores it from the journal that it has.
struct HoldBackup {
  uint32_t job = 0;
  uint32_t server = 0;
  uint32_t engines = 0;
  uint32_t order = 0;        // of a number of its own
  bool has_journal = false;  // it needs a place for one
  bool restores = false;
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
// It goes on without its journal, which may begin anew as that generation. That it does is
// stored.
struct JournalGone {
  uint32_t job = 0;
  uint32_t generation = 0;
};
// They could; or there is nothing to wait for.
struct Drained {};
// It is to end, as SIGTERM would make it: an operator wants that.
struct EndServer {};
// The server is dead: its stand-in serves its shards.
struct TakeOver {
  uint32_t job = 0;
  // Of its journal, which begins with the first commit; empty: it has none.
  std::string run = {};
  uint32_t generation = 0;
};

}  // namespace syncline
