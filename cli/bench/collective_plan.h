// What `bench collective` is to measure, from its flags.
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

// As the flags have it.
struct CollectiveOptions {
  std::string op = "all_reduce";
  int ranks = 2;
  std::string bytes = "8..268435456";
  std::string reduce = "sum";
  std::string algorithm;  // empty: the group's choice
  std::string codec;      // empty: values travel as they are
  std::string wire = "shared";
  bool is_exact = false;  // sums in the order of ranks
  int hosts = 0;  // as if the ranks were on so many; 0: on as many as there are ranks
  bool prints_json = false;
};

// The same, checked.
struct CollectivePlan {
  collective::CollectiveOp op = collective::CollectiveOp::kAllReduce;
  // Of bitwise ones elements are i32, of others f32.
  collective::ReduceOp reduce = collective::ReduceOp::kSum;
  collective::ElementType type = collective::ElementType::kF32;
  int ranks = 2;
  bool is_exact = false;
  std::vector<uint64_t> sizes = {};  // in bytes
  std::optional<collective::Algorithm> algorithm = {};
  std::string codec = {};
  int hosts = 1;
  TcpSecurity security = TcpSecurity::kTls;
};

// InvalidArgument with Failure::kUsage names the flag and what it may be.
absl::StatusOr<CollectivePlan> PlanCollective(const CollectiveOptions& options);

}  // namespace syncline
