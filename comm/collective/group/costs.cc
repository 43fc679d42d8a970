#include "comm/collective/group/costs.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "comm/base/status.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/shared_memory.h"
#include "comm/collective/group/whole_file.h"
#include "nlohmann/json.hpp"

namespace syncline::collective {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
// A usual file has 300 bytes.
constexpr size_t kMostBytes = size_t{64} << 10;
// A cost above this is a mistake: a second for a byte or a minute of latency.
constexpr double kMostSeconds = 60;

constexpr std::pair<const char*, double LinkCost::*> kLinkMembers[] = {
    {"latency_s", &LinkCost::latency},
    {"per_message_s", &LinkCost::per_message},
    {"per_byte_s", &LinkCost::per_byte}};

absl::StatusOr<double> ParseSeconds(const std::string& name, const Json& value) {
  const double seconds = value.is_number() ? value.get<double>() : -1;
  if (seconds >= 0 && seconds <= kMostSeconds) return seconds;
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is ", value.dump(),
                                                 ", but must be a number of seconds ",
                                                 "from 0 to ", kMostSeconds));
}

absl::StatusOr<LinkCost> ParseLink(const std::string& name, const Json& json) {
  if (!json.is_object() || json.size() != std::size(kLinkMembers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", name, "' must have latency_s, per_message_s and per_byte_s, and no more"));
  }
  LinkCost link;
  for (const auto& [member, field] : kLinkMembers) {
    const std::string path = absl::StrCat(name, ".", member);
    if (!json.contains(member)) {
      return absl::InvalidArgumentError(absl::StrCat("'", path, "' is missing"));
    }
    SYNCLINE_ASSIGN_OR_RETURN(link.*field, ParseSeconds(path, json[member]));
  }
  return link;
}

Json FormatLink(const LinkCost& link) {
  Json json;
  for (const auto& [member, field] : kLinkMembers) json[member] = link.*field;
  return json;
}

absl::Status About(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the file of costs ", path, ": ", why,
                   "; mend it, or delete it: the group then measures again"));
}

std::string Microseconds(double seconds) {
  return seconds < 1e-4 ? absl::StrFormat("%.3g us", seconds * 1e6)
                        : absl::StrFormat("%.0f us", seconds * 1e6);
}

std::string DescribeLink(const LinkCost& link) {
  const double gbits = 8e-9 / std::max(link.per_byte, 1e-15);
  return absl::StrCat(Microseconds(link.latency), ", ", Microseconds(link.per_message),
                      " a message, ", absl::StrFormat("%.3g Gbit/s", gbits));
}

std::string DescribeChoice(const Problem& problem, const Topology& topology) {
  const size_t bytes = problem.count * ElementBytes(ElementType::kF32);
  if (topology.hosts == 1 && bytes <= kBoardBytes) return "the board";
  const std::vector<std::string> best =
      absl::StrSplit(Select(problem, ElementBytes(ElementType::kF32), topology).reason,
                     absl::MaxSplits(", ", 2));
  return best.size() == 1 ? best[0] : absl::StrCat(best[0], " (next ", best[1], ")");
}

}  // namespace

Costs KnownCosts::OrBuiltIn() const {
  Costs costs;
  costs.host = host.value_or(costs.host);
  costs.network = network.value_or(costs.network);
  costs.per_reduced_byte = per_reduced_byte.value_or(costs.per_reduced_byte);
  return costs;
}

std::string FormatCosts(const KnownCosts& costs) {
  Json json = {{"version", kVersion}};
  if (costs.host) json["host"] = FormatLink(*costs.host);
  if (costs.network) json["network"] = FormatLink(*costs.network);
  if (costs.per_reduced_byte) json["per_reduced_byte_s"] = *costs.per_reduced_byte;
  return json.dump(2) + "\n";
}

absl::StatusOr<KnownCosts> ParseCosts(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  if (!json.contains("version") || json["version"] != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("'version' must be ", kVersion));
  }
  KnownCosts costs;
  for (const auto& item : json.items()) {
    const std::string& name = item.key();
    if (name == "host") {
      SYNCLINE_ASSIGN_OR_RETURN(costs.host, ParseLink(name, item.value()));
    } else if (name == "network") {
      SYNCLINE_ASSIGN_OR_RETURN(costs.network, ParseLink(name, item.value()));
    } else if (name == "per_reduced_byte_s") {
      SYNCLINE_ASSIGN_OR_RETURN(costs.per_reduced_byte, ParseSeconds(name, item.value()));
    } else if (name != "version") {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is unknown: there are version, host, network and ",
                       "per_reduced_byte_s"));
    }
  }
  return costs;
}

absl::StatusOr<KnownCosts> ReadCosts(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return KnownCosts{};
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (error || file.bad() || !file.eof()) {
    return About(path, text.size() > kMostBytes ? "is too long" : "cannot be read");
  }
  auto costs = ParseCosts(text);
  if (!costs.ok()) return About(path, costs.status().message());
  return costs;
}

absl::Status WriteCosts(const std::string& path, const KnownCosts& costs) {
  const std::string fresh = absl::StrCat(path, ".", getpid(), ".fresh");
  const std::error_code error = ReplaceFile(path, fresh, FormatCosts(costs));
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot write the measured costs to ", path, ": ", error.message(),
      "; name a file in a folder in which rank 0 may write, or 'probe' to keep nothing"));
}

std::string DescribeCostsOf(const Topology& topology, CostSource source) {
  const Costs& costs = topology.costs;
  std::string text = "costs are ";
  absl::StrAppend(&text, source == CostSource::kBuiltIn ? "built in"
                         : source == CostSource::kFile  ? "those of a file"
                                                        : "measured");
  absl::StrAppend(&text, ": within a host ", DescribeLink(costs.host));
  if (topology.hosts > 1) {
    absl::StrAppend(&text, "; between hosts ", DescribeLink(costs.network));
  }
  return text;
}

std::string DescribeChoices(const Shape& shape, const Topology& topology) {
  std::string text = "all_reduce of";
  constexpr std::pair<const char*, size_t> kSizes[] = {
      {" 8 B", 8}, {", 64 KiB", 64 << 10}, {", 64 MiB", 64 << 20}};
  for (const auto& [name, bytes] : kSizes) {
    const Problem problem = {.op = CollectiveOp::kAllReduce,
                             .ranks = shape.ranks,
                             .count = bytes / ElementBytes(ElementType::kF32),
                             .local = shape.local,
                             .exact = shape.exact};
    absl::StrAppend(&text, name, " by ", DescribeChoice(problem, topology));
  }
  return text;
}

}  // namespace syncline::collective
