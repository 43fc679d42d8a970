// Turns the flags of `syncline bench collective` into a plan.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/collective/element/element.h"
#include "comm/collective/schedule/schedule.h"
#include "comm/transport/tcp/tcp.h"

namespace syncline {

// Values of the flags.
struct CollectiveOptions {
  std::string op = "all_reduce";
  int ranks = 2;
  std::string bytes = "8..268435456";
  std::string reduce = "sum";
  std::string algorithm;  // empty: the group's choice
  std::string codec;      // empty: values travel as they are
  std::string wire = "shared";
  std::string costs;      // GroupOptions::costs
  bool is_exact = false;  // sums in the order of ranks
  int hosts = 0;          // number of hosts to pretend; 0: one per rank
  bool prints_json = false;
};

// The checked plan.
struct CollectivePlan {
  collective::CollectiveOp op = collective::CollectiveOp::kAllReduce;
  // Elements are i32 for bitwise operations, and f32 otherwise.
  collective::ReduceOp reduce = collective::ReduceOp::kSum;
  collective::ElementType type = collective::ElementType::kF32;
  int ranks = 2;
  bool is_exact = false;
  std::vector<uint64_t> sizes = {};  // in bytes
  std::optional<collective::Algorithm> algorithm = {};
  std::string codec = {};
  int hosts = 1;
  TcpSecurity security = TcpSecurity::kTls;
  std::string costs = {};
};

// Fails with InvalidArgument (Failure::kUsage), naming the flag and its allowed values.
absl::StatusOr<CollectivePlan> PlanCollective(const CollectiveOptions& options);

}  // namespace syncline
