// The costs of the model by which groups choose algorithms: their file, and their
// description for people.
//
// A file is a JSON object. A part that is missing is unknown; a group that needs it
// measures it.
//
//   {"version": 1,
//    "host": {"latency_s": 6e-7, "per_message_s": 3e-7, "per_byte_s": 6e-11},
//    "network": {"latency_s": 2.5e-5, "per_message_s": 5e-6, "per_byte_s": 8e-10},
//    "per_reduced_byte_s": 5e-11}
//
// Thread safety: pure functions, except for the file.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/collective/schedule/select.h"

namespace syncline::collective {

enum class CostSource { kBuiltIn, kFile, kMeasured };

// The part of Costs that is known.
struct KnownCosts {
  std::optional<LinkCost> host = {};
  std::optional<LinkCost> network = {};
  std::optional<double> per_reduced_byte = {};

  bool operator==(const KnownCosts&) const = default;
  // Returns the built-in costs where nothing is known.
  Costs OrBuiltIn() const;
};

// Numbers are read back with the same bits.
std::string FormatCosts(const KnownCosts& costs);
// Fails with InvalidArgument, which names the member and what it must be.
absl::StatusOr<KnownCosts> ParseCosts(const std::string& json);

// Returns nothing known if there is no such file. Fails with InvalidArgument, naming the
// file, if it cannot be read or parsed.
absl::StatusOr<KnownCosts> ReadCosts(const std::string& path);
// Replaces the file at once: others read the old or the new one.
absl::Status WriteCosts(const std::string& path, const KnownCosts& costs);

// Returns a string such as "costs are built in: between hosts 25 us, 5 us a message, 10
// Gbit/s". Leaves out what plays no role in the topology.
std::string DescribeCostsOf(const Topology& topology, CostSource source);

// What a choice depends on besides operation and costs.
struct Shape {
  int ranks = 1;
  int local = 1;  // Problem::local
  bool exact = false;
};

// Returns which algorithm an all-reduce of 8 B, 64 KiB and 64 MiB of FP32 uses, with the
// estimates of the best and the next one.
std::string DescribeChoices(const Shape& shape, const Topology& topology);

}  // namespace syncline::collective
