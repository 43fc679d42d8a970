// Certificates that were taken back before they end: a file of serial numbers, which
// `syncline certs revoke` writes.
//
//   # serial, and what is for people
//   0A1B2C  worker of job 'bert', valid to 2026-01-31 10:00 UTC
//
// Thread safety: any thread. A handshake reads a snapshot and waits for nobody: one of them
// a second looks whether the file has changed, and the others do not wait for the disk.
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

// Capital hexadecimal digits of whole bytes without leading ones of 0, as
// `openssl x509 -serial`, `certs show` and audit lines have them: 0A1B; colons between them
// are left out. InvalidArgument for anything else.
absl::StatusOr<std::string> ParseSerial(const std::string& text);

// The serials of a file. InvalidArgument names the line that is wrong.
absl::StatusOr<std::set<std::string>> ParseRevoked(const std::string& contents);

struct RevokedOptions {
  std::string path = {};         // empty: nothing is revoked
  const Clock* clock = nullptr;  // outlives the list; null: the machine's
  Logger log = {};
};

class RevokedList {
 public:
  // Failure::kUsage when the file cannot be read, or a line is wrong or does not end.
  static absl::StatusOr<std::unique_ptr<RevokedList>> Open(RevokedOptions options);

  // By the file as it was within the last second. When it cannot be read any more, is not
  // whole or empty, what it said last holds on, and the log says so.
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
  // All that were ever read and differ from the one before: somebody may still be reading
  // an old one. They come by hand, a few in the life of a process.
  std::vector<std::unique_ptr<const Serials>> versions_ ABSL_GUARDED_BY(looking_);
};

}  // namespace syncline
