// Workers between their hello and their job, and the declarations that say what jobs are.
//
// A hello carries the digest of a declaration. Where the digest is known, nothing is sent
// again. Otherwise one of the workers who announced it is asked for the bytes, which are
// read beside the coordinator (preparation.h). A worker that is slow to send is not
// waited for alone: after a quarter of the failure timeout the next one is asked, after
// the whole of it the slow one is refused. One that sends other bytes is refused at once.
//
// What can be held is bounded: workers that wait, bytes that are asked for or being read,
// and bytes of the jobs that are there. Small declarations do not wait behind large ones.
// What nobody uses any more is dropped at a Tick.
//
// Pure, and not thread-safe: part of the Coordinator.
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

namespace syncline {

inline constexpr size_t kDigestBytes = 32;  // SHA-256
// A message has 64 MiB at most.
inline constexpr uint64_t kMaxDeclarationBytes = uint64_t{63} << 20;

struct DeclarationLimits {
  size_t newcomers = 2 * size_t{kMaxWorkers};
  // Up to so many bytes a declaration is small: some 10,000 tensors.
  uint64_t small_bytes = uint64_t{1} << 20;
  // Asked for or being read at one time, of small and of large ones each. In memory a
  // declaration takes about five times its bytes.
  uint64_t under_way_bytes = uint64_t{128} << 20;
  uint64_t kept_bytes = uint64_t{512} << 20;  // of all that are used
};

class Declarations {
 public:
  // A worker that has said hello.
  struct Newcomer {
    WorkerHello hello = {};
    absl::Duration heard_at = {};
    std::optional<absl::Duration> disconnected_at = {};
    std::optional<absl::Duration> asked_at = {};
    absl::Duration said_at = {};  // that it waits
    std::string waits_for = {};   // the end of something else; empty: what its job is
  };

  explicit Declarations(const Timeouts& timeouts, const DeclarationLimits& limits = {})
      : timeouts_(timeouts), limits_(limits) {}

  // Of a newcomer with a hello whose names are valid. An error is its refusal.
  absl::Status Add(ConnectionId connection, const WorkerHello& hello, absl::Duration now,
                   CoordinatorOutputs& outputs);
  // What a newcomer says otherwise.
  void OnNewcomer(ConnectionId connection, const MemberBody& body, absl::Duration now,
                  CoordinatorOutputs& outputs);
  void OnRead(const DeclarationRead& read, absl::Duration now,
              CoordinatorOutputs& outputs);
  void OnCompared(const JobsCompared& compared);
  void OnPlaced(const JobPlaced& placed);
  // Drops who is silent, asks others, and forgets what is not in `used`.
  void Tick(absl::Duration now, const std::set<std::string>& used,
            CoordinatorOutputs& outputs);

  // Null while it is not known.
  std::shared_ptr<const DeclaredJob> Find(const std::string& digest) const;
  std::vector<ConnectionId> NewcomersOf(const std::string& digest) const;
  // For what a newcomer waits whose declaration is known: it hears that at once and then now
  // and again. Empty: it is being found out whether it may join.
  void Waits(ConnectionId connection, const std::string& reason,
             CoordinatorOutputs& outputs);
  std::vector<ConnectionId> WhoWaits() const;
  const WorkerHello& HelloOf(ConnectionId connection) const {
    return newcomers_.at(connection).hello;
  }
  // It is none any more.
  Newcomer Take(ConnectionId connection);

  // Whether a worker that declares `theirs` may join a job of `ours`. Nothing while that
  // is being found out. REQUIRES: `theirs` is known.
  std::optional<absl::Status> SameJob(const std::shared_ptr<const DeclaredJob>& ours,
                                      const std::shared_ptr<const DeclaredJob>& theirs,
                                      CoordinatorOutputs& outputs);
  // Where the blocks of `job` go on such servers; null while that is being found out.
  // REQUIRES: `job` is known.
  absl::StatusOr<std::shared_ptr<const JobPlacement>> PlacementOf(
      const std::shared_ptr<const DeclaredJob>& job, const std::vector<uint32_t>& shards,
      CoordinatorOutputs& outputs);

  size_t newcomers() const { return newcomers_.size(); }
  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  struct Entry {
    std::set<ConnectionId> newcomers = {};
    std::shared_ptr<const DeclaredJob> job = {};
    uint64_t asked_bytes = 0;  // of the worker asked last, while it may take its time
    absl::Duration asked_at = {};
    bool is_being_read = false;
    // With the jobs of other digests; nothing while that is being found out.
    std::map<std::string, std::optional<absl::Status>> same = {};
    std::vector<uint32_t> placed_on = {};  // shards of the servers that were ordered last
    absl::StatusOr<std::shared_ptr<const JobPlacement>> placement = nullptr;
  };

  void Ask(const std::string& digest, Entry& entry, absl::Duration now,
           CoordinatorOutputs& outputs);
  void AskWhereNeeded(absl::Duration now, CoordinatorOutputs& outputs);
  void Deliver(ConnectionId connection, const JobDeclaration& declaration,
               CoordinatorOutputs& outputs);
  void StopAsking(Entry& entry);
  uint64_t& UnderWay(uint64_t bytes) {
    return bytes <= limits_.small_bytes ? small_under_way_ : large_under_way_;
  }
  void DropSilent(absl::Duration now, CoordinatorOutputs& outputs);
  void SayThatTheyWait(absl::Duration now, CoordinatorOutputs& outputs);
  void ForgetUnused(const std::set<std::string>& used);
  void Refuse(ConnectionId connection, const absl::Status& status,
              CoordinatorOutputs& outputs);
  void RefuseAll(const std::string& digest, const absl::Status& status,
                 CoordinatorOutputs& outputs);

  const Timeouts timeouts_;
  const DeclarationLimits limits_;
  std::map<ConnectionId, Newcomer> newcomers_;
  std::map<std::string, Entry> entries_;  // by digest
  // Asked for or being read.
  uint64_t small_under_way_ = 0;
  uint64_t large_under_way_ = 0;
  uint64_t kept_bytes_ = 0;
};

}  // namespace syncline
