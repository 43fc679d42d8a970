// The authorities that sign our peers' certificates: the file of --tls-ca, as it is now. A
// handshake goes by it once; what was open before the file was changed is asked again here.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto authorities, Authorities::Open({.path = tls.ca_file}));
//   SYNCLINE_RETURN_IF_ERROR(authorities->Check(*peer.proof));
//
// Thread safety: any thread. Nobody waits for the disk but one caller a second.
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

// Unauthenticated unless `chain` (PEM; the peer's certificate first, then what it showed
// beside it) leads to one of `authorities` (PEM) at `now`, as a handshake would have it.
absl::Status VerifyChain(const std::string& chain, const std::string& authorities,
                         absl::Time now);

// What a peer has shown, and by which state of the file that was believed.
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
  const Clock* clock = nullptr;  // outlives them; null: the machine's
  Logger log = {};
};

class Authorities {
 public:
  // Failure::kUsage when the file cannot be read or holds no certificate.
  static absl::StatusOr<std::unique_ptr<Authorities>> Open(AuthoritiesOptions options);

  // Unauthenticated when no authority of the file signs for this peer any more. By the file
  // as it was within the last second; when it cannot be read, or is cut off, what it said
  // last holds on, and the log says so.
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
