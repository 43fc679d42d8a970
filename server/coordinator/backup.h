// Messages about backups of servers in the memory of other servers (ADR 29,
// job_backups.cc). A stand-in is a node, in the process of another server, that holds the
// backup of a server or restores its journal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/base/secret_key.h"
#include "comm/transport/tcp/member_key.h"

namespace syncline {

// What a stand-in stands in for.
struct StandInFor {
  uint32_t job = 0;
  uint32_t server = 0;
  uint32_t order = 0;  // of the HoldBackup that started it
};
// The identity and keys with which a server sends records to its backup.
struct BackupPair {
  ServerIdentity sender = {};
  uint64_t session_key = 0;
  SecretKey key = {};
};

// ---- From servers ----

// From a server: its backup cannot be reached. From a stand-in: it cannot continue.
struct BackupLost {
  uint32_t job = 0;
  std::string reason = {};
  // Of BackupAt. 0: from a stand-in, or from a server of an earlier release.
  uint64_t session_key = 0;
};

// A backup that was started while the job ran now has the complete state of the shards.
struct BackedUp {
  uint32_t job = 0;
  uint64_t session_key = 0;  // of BackupAt
};

// The journal of a server that also has a backup has failed. The server waits for
// JournalGone before it continues without a journal.
struct JournalLost {
  uint32_t job = 0;
  std::string reason = {};
};

// The journal of that generation is complete again.
struct JournalWhole {
  uint32_t job = 0;
  uint32_t generation = 0;
};

// The server was told to end, and waits until backups elsewhere can take over its shards.
struct Drain {};

// ---- From the coordinator ----

// Starts a stand-in for `server`: it holds the server's backup or, if `restores`,
// restores the server from the journal that the receiver has.
struct HoldBackup {
  uint32_t job = 0;
  uint32_t server = 0;
  uint32_t engines = 0;
  uint32_t order = 0;        // unique number of this order
  bool has_journal = false;  // it keeps a journal once it has taken over
  bool restores = false;
};
// The address of the server's backup: records go there. A server that has a backup
// already sends its records to both until BackupGone names one of them.
struct BackupAt {
  uint32_t job = 0;
  std::vector<std::string> addresses = {};  // one for each engine
  BackupPair pair = {};
  bool with_state =
      false;  // send the complete state of the shards first, then say BackedUp
};
// The server continues without that backup. The coordinator has stored that.
struct BackupGone {
  uint32_t job = 0;
  std::string reason = {};
  uint64_t session_key = 0;  // of BackupAt; 0: without any
};
// The server continues without its journal, and may start a new one with that generation.
// The coordinator has stored that.
struct JournalGone {
  uint32_t job = 0;
  uint32_t generation = 0;
};
// Answer to Drain: the server may exit.
struct Drained {};
// Asks a server to drain and exit, as SIGTERM does: an operator called DrainServer.
struct EndServer {};
// The server is lost: its stand-in serves its shards from now on.
struct TakeOver {
  uint32_t job = 0;
  // Run of the journal that it starts with the first commit; empty: no journal.
  std::string run = {};
  uint32_t generation = 0;
};

}  // namespace syncline
