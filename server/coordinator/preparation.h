// What takes long where a job has many tensors. The coordinator orders it (Prepare, an
// output), its shell does it on another thread, in the order of the orders, and what
// comes of it goes back as an input. Each order is answered once.
//
//   const Prepared answer = CarryOut(order, reader);
//   outputs = coordinator.Apply(answer, now);
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/coordinator/admission.h"
#include "server/coordinator/declared_job.h"

namespace syncline {

using ConnectionId = uint64_t;

// ---- Orders ----

// Whether `from` has sent what it announced, and whether that is a job.
struct ReadDeclaration {
  ConnectionId from = 0;
  Declaration announced = {};
};
// Whether who declares `theirs` may join a job made of `ours`.
struct CompareJobs {
  std::shared_ptr<const DeclaredJob> ours;
  std::shared_ptr<const DeclaredJob> theirs;
};
// Where the blocks go on servers of so many shards each.
struct PlaceBlocksOf {
  std::shared_ptr<const DeclaredJob> job;
  std::vector<uint32_t> shards = {};
};
using Preparation = std::variant<ReadDeclaration, CompareJobs, PlaceBlocksOf>;

// ---- Answers ----

struct DeclarationRead {
  ConnectionId from = 0;
  std::string digest = {};
  size_t bytes = 0;
  absl::Status delivery = {};  // OK: the bytes have the digest
  absl::StatusOr<std::shared_ptr<const DeclaredJob>> job = nullptr;
};
struct JobsCompared {
  std::string ours = {};  // digests
  std::string theirs = {};
  absl::Status same = {};  // as CheckSameJob
};
struct JobPlaced {
  std::string digest = {};
  std::vector<uint32_t> shards = {};
  absl::StatusOr<std::shared_ptr<const JobPlacement>> placement = nullptr;
};
using Prepared = std::variant<DeclarationRead, JobsCompared, JobPlaced>;

// How bytes are digested and read: the coordinator knows no wire format.
struct DeclarationReader {
  std::function<std::string(const std::string& bytes)> digest;
  std::function<absl::StatusOr<JobSpec>(const std::string& bytes)> parse;
};

Prepared CarryOut(const Preparation& order, const DeclarationReader& reader);

}  // namespace syncline
