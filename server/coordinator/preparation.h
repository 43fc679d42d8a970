// Computations that take long for jobs with many tensors. The coordinator orders one with
// an output (Prepare). The shell runs it on another thread, in the order of the orders,
// and gives the result back as an input. Each order has one answer.
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

// Checks that `from` has sent the declaration that it announced, and reads it.
struct ReadDeclaration {
  ConnectionId from = 0;
  Declaration announced = {};
};
// Checks whether a worker that declares `theirs` may join a job made of `ours`.
struct CompareJobs {
  std::shared_ptr<const DeclaredJob> ours;
  std::shared_ptr<const DeclaredJob> theirs;
};
// Places the blocks on servers with these numbers of shards.
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
  absl::Status delivery = {};  // OK: the bytes have the announced digest
  absl::StatusOr<std::shared_ptr<const DeclaredJob>> job = nullptr;
};
struct JobsCompared {
  std::string ours = {};  // digests
  std::string theirs = {};
  absl::Status same = {};  // result of CheckSameJob
};
struct JobPlaced {
  std::string digest = {};
  std::vector<uint32_t> shards = {};
  absl::StatusOr<std::shared_ptr<const JobPlacement>> placement = nullptr;
};
using Prepared = std::variant<DeclarationRead, JobsCompared, JobPlaced>;

// Computes digests and parses declarations. The coordinator knows no wire format.
struct DeclarationReader {
  std::function<std::string(const std::string& bytes)> digest;
  std::function<absl::StatusOr<JobSpec>(const std::string& bytes)> parse;
};

Prepared CarryOut(const Preparation& order, const DeclarationReader& reader);

}  // namespace syncline
