// Newcomers, which are workers between their hello and their job, and the declarations
// that describe jobs.
//
// A hello carries the digest of a declaration. If the digest is known, the declaration is
// not sent again. Otherwise one of the newcomers that announced it is asked for the
// bytes, and the shell reads them on another thread (preparation.h). If it does not
// answer within a quarter of the failure timeout, the next newcomer is asked as well. It
// is refused after the whole failure timeout. A newcomer that sends other bytes is
// refused at once.
//
// Memory is bounded: there are limits on newcomers, on bytes that are requested or being
// read, and on the bytes of known declarations. Small declarations do not wait behind
// large ones. Tick drops declarations that nobody uses any more.
//
// Thread safety: none; part of the Coordinator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/base/limits.h"
#include "comm/base/timeouts.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/outbox.h"

namespace syncline {

inline constexpr size_t kDigestBytes = 32;  // SHA-256
// A message has at most 64 MiB.
inline constexpr uint64_t kMaxDeclarationBytes = uint64_t{63} << 20;

struct DeclarationLimits {
  size_t newcomers = 2 * size_t{kMaxWorkers};
  // A declaration of at most this size is small: about 10,000 tensors.
  uint64_t small_bytes = uint64_t{1} << 20;
  // Limit on the bytes that are requested or being read at a time. It applies to small
  // and to large declarations separately. A declaration takes about five times its bytes
  // of memory.
  uint64_t under_way_bytes = uint64_t{128} << 20;
  uint64_t kept_bytes = uint64_t{512} << 20;  // all known declarations
};

class Declarations {
 public:
  // A worker that has said hello.
  struct Newcomer {
    WorkerHello hello = {};
    absl::Duration heard_at = {};
    std::optional<absl::Duration> disconnected_at = {};
    std::optional<absl::Duration> asked_at = {};
    absl::Duration said_at = {};  // time of the last Waiting message
    // What it waits for. Empty: until its declaration is known and checked.
    std::string waits_for = {};
  };

  Declarations(const Timeouts& timeouts, Outbox& outbox,
               const DeclarationLimits& limits = {})
      : timeouts_(timeouts), outbox_(outbox), limits_(limits) {}

  // Adds a newcomer. The names in `hello` are valid. If this returns an error, the caller
  // refuses the newcomer with it.
  absl::Status Add(ConnectionId connection, const WorkerHello& hello, absl::Duration now);
  // Handles the other messages of a newcomer.
  void OnNewcomer(ConnectionId connection, const MemberBody& body, absl::Duration now);
  void OnRead(const DeclarationRead& read, absl::Duration now);
  void OnCompared(const JobsCompared& compared);
  void OnPlaced(const JobPlaced& placed);
  // Drops silent newcomers, asks other newcomers for declarations, and forgets the
  // declarations that have no newcomers and are not in `used`.
  void Tick(absl::Duration now, const std::set<std::string>& used);

  // Null: not known yet.
  std::shared_ptr<const DeclaredJob> Find(const std::string& digest) const;
  std::vector<ConnectionId> NewcomersOf(const std::string& digest) const;
  // Sets what a newcomer with a known declaration waits for. The newcomer is told at
  // once, and again every second. Empty: until it is known whether it may join.
  void Waits(ConnectionId connection, const std::string& reason);
  std::vector<ConnectionId> WhoWaits() const;
  const WorkerHello& HelloOf(ConnectionId connection) const {
    return newcomers_.at(connection).hello;
  }
  // Removes the newcomer and returns it.
  Newcomer Take(ConnectionId connection);

  // Returns whether a worker that declares `theirs` may join a job of `ours`. Empty: not
  // known yet; the comparison has been ordered. REQUIRES: `theirs` is known.
  std::optional<absl::Status> SameJob(const std::shared_ptr<const DeclaredJob>& ours,
                                      const std::shared_ptr<const DeclaredJob>& theirs);
  // Returns the placement of the blocks of `job` on servers with these numbers of shards.
  // Null: not known yet; the placement has been ordered. REQUIRES: `job` is known.
  absl::StatusOr<std::shared_ptr<const JobPlacement>> PlacementOf(
      const std::shared_ptr<const DeclaredJob>& job, const std::vector<uint32_t>& shards);

  size_t newcomers() const { return newcomers_.size(); }
  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  struct Entry {
    std::set<ConnectionId> newcomers = {};
    std::shared_ptr<const DeclaredJob> job = {};
    // `job_bytes` of the newcomer that was asked last. 0: no request is open.
    uint64_t asked_bytes = 0;
    absl::Duration asked_at = {};
    bool is_being_read = false;
    // By digest of another job: whether it is the same job. Empty: not known yet.
    std::map<std::string, std::optional<absl::Status>> same = {};
    // Shards of the servers that the last placement was ordered for.
    std::vector<uint32_t> placed_on = {};
    absl::StatusOr<std::shared_ptr<const JobPlacement>> placement = nullptr;
  };

  void Ask(const std::string& digest, Entry& entry, absl::Duration now);
  void AskWhereNeeded(absl::Duration now);
  void Deliver(ConnectionId connection, const JobDeclaration& declaration);
  void StopAsking(Entry& entry);
  uint64_t& UnderWay(uint64_t bytes) {
    return bytes <= limits_.small_bytes ? small_under_way_ : large_under_way_;
  }
  void DropSilent(absl::Duration now);
  void SayThatTheyWait(absl::Duration now);
  void ForgetUnused(const std::set<std::string>& used);
  void Refuse(ConnectionId connection, const absl::Status& status);
  void RefuseAll(const std::string& digest, const absl::Status& status);

  const Timeouts timeouts_;
  Outbox& outbox_;
  const DeclarationLimits limits_;
  std::map<ConnectionId, Newcomer> newcomers_;
  std::map<std::string, Entry> entries_;  // by digest
  // Bytes that are requested or being read.
  uint64_t small_under_way_ = 0;
  uint64_t large_under_way_ = 0;
  uint64_t kept_bytes_ = 0;
};

}  // namespace syncline
