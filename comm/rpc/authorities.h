// The current authorities in the file of --tls-ca, which sign the certificates of peers.
// A handshake checks a peer once. For connections that are older than a change of the
// file, Check repeats that check.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto authorities, Authorities::Open({.path = tls.ca_file}));
//   SYNCLINE_RETURN_IF_ERROR(authorities->Check(*peer.proof));
//
// Thread safety: any thread. At most one caller a second waits for the disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/rpc/watched_file.h"

namespace syncline {

// Fails with Unauthenticated unless `chain` leads to one of `authorities` (PEM) at `now`,
// by the rules of a handshake. `chain` is PEM: the peer's certificate first, then the
// intermediate ones that it presented.
absl::Status VerifyChain(const std::string& chain, const std::string& authorities,
                         absl::Time now);

// The certificates that a peer presented, and the version of the file that accepted them.
class PeerProof {
 public:
  explicit PeerProof(std::string chain) : chain_(std::move(chain)) {}

 private:
  friend class Authorities;
  const std::string chain_;
  std::atomic<uint64_t> believed_by_ = 0;
};

struct AuthoritiesOptions {
  std::string path = {};
  const Clock* clock = nullptr;  // null: the system's; must outlive this
  Logger log = {};
};

class Authorities {
 public:
  // Fails with Failure::kUsage when the file cannot be read or contains no certificate.
  static absl::StatusOr<std::unique_ptr<Authorities>> Open(AuthoritiesOptions options);

  // Fails with Unauthenticated when no authority in the file signs for this peer any
  // more. Uses the file's contents of at most a second ago. If the file is unreadable or
  // truncated, its last contents stay in force, and the log says so.
  absl::Status Check(PeerProof& proof) ABSL_LOCKS_EXCLUDED(looking_, mutex_);

 private:
  // One state of the file.
  struct Version {
    uint64_t number = 0;
    std::string pem;
  };

  explicit Authorities(AuthoritiesOptions options)
      : options_(std::move(options)), file_(options_.path, options_.clock) {}

  absl::Status Read() ABSL_LOCKS_EXCLUDED(mutex_);
  void LookAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(looking_);
  std::shared_ptr<const Version> Latest() const ABSL_LOCKS_EXCLUDED(mutex_);

  const AuthoritiesOptions options_;

  absl::Mutex looking_;
  WatchedFile file_;  // HasChanged needs looking_

  mutable absl::Mutex mutex_;
  std::shared_ptr<const Version> latest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
