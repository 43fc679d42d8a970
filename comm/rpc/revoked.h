// Certificates that were revoked before they expire: a file of serial numbers, which
// `syncline certs revoke` writes.
//
//   # serial, and a note for people
//   0A1B2C  worker of job 'bert', valid to 2026-01-31 10:00 UTC
//
// Thread safety: any thread. Handshakes read a snapshot without blocking. One of them per
// second checks whether the file has changed; the others do not wait for the disk.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/rpc/watched_file.h"

namespace syncline {

// Parses a serial number in hexadecimal, with or without colons. Returns upper-case
// digits of whole bytes without leading zero bytes, such as 0A1B, as `openssl x509
// -serial`, `certs show` and audit lines print it. Fails with InvalidArgument for
// anything else.
absl::StatusOr<std::string> ParseSerial(const std::string& text);

// Returns the serials in a file. InvalidArgument names the wrong line.
absl::StatusOr<std::set<std::string>> ParseRevoked(const std::string& contents);

struct RevokedOptions {
  std::string path = {};         // empty: nothing is revoked
  const Clock* clock = nullptr;  // null: the system's; must outlive the list
  Logger log = {};
};

class RevokedList {
 public:
  // Fails with Failure::kUsage when the file cannot be read, or a line is wrong or
  // unfinished.
  static absl::StatusOr<std::unique_ptr<RevokedList>> Open(RevokedOptions options);

  // Uses the file's contents of at most a second ago. If the file is unreadable,
  // truncated or empty, its last contents stay in force, and the log says so.
  bool Contains(const std::string& serial) ABSL_LOCKS_EXCLUDED(looking_);

 private:
  using Serials = std::set<std::string>;

  explicit RevokedList(RevokedOptions options)
      : options_(std::move(options)),
        serials_(&none_),
        file_(options_.path, options_.clock) {}

  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(looking_);
  void LookAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(looking_);

  const RevokedOptions options_;

  const Serials none_;

  std::atomic<const Serials*> serials_;  // one of versions_, or none_

  absl::Mutex looking_;
  WatchedFile file_;  // HasChanged needs looking_
  // All versions that were ever read and differ from their predecessor, since another
  // thread may still read an old one. The file is edited by hand, so there are only a
  // few.
  std::vector<std::unique_ptr<const Serials>> versions_ ABSL_GUARDED_BY(looking_);
};

}  // namespace syncline
