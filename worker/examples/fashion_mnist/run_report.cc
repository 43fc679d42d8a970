#include "worker/examples/fashion_mnist/run_report.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/status.h"

namespace syncline::fashion_mnist {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMiB = 1024.0 * 1024.0;

Json ToJsonValue(const RunReport& report) {
  Json json = {{"name", report.name},
               {"precision", report.precision},
               {"rank", report.rank},
               {"workers", report.workers},
               {"steps", report.steps},
               {"parameters", report.parameters},
               {"accuracy", report.accuracy},
               {"loss", report.loss},
               {"seconds", report.seconds},
               {"samples_per_second", report.samples_per_second},
               {"bytes_pushed", report.bytes_pushed},
               {"bytes_pulled", report.bytes_pulled}};
  for (const Evaluation& one : report.evaluations) {
    json["evaluations"].push_back({{"step", one.step},
                                   {"seconds", one.seconds},
                                   {"accuracy", one.accuracy},
                                   {"bytes_pushed", one.bytes_pushed},
                                   {"bytes_pulled", one.bytes_pulled}});
  }
  return json;
}

// Reads fields one by one and remembers the first that is missing or of another type.
class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  void Read(const char* field, std::string& out) {
    if (const Json* value = Find(field, &Json::is_string))
      out = value->get<std::string>();
  }
  void Read(const char* field, int64_t& out) {
    if (const Json* value = Find(field, &Json::is_number_integer)) {
      out = value->get<int64_t>();
    }
  }
  void Read(const char* field, double& out) {
    if (const Json* value = Find(field, &Json::is_number)) out = value->get<double>();
  }

  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* field, bool (Json::*has_type)() const noexcept) {
    const auto found = object_.find(field);
    if (found != object_.end() && ((*found).*has_type)()) return &*found;
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("report field '", field, "' is missing or has another type"));
    }
    return nullptr;
  }

  const Json& object_;
  absl::Status status_;
};

std::string TableRow(const RunReport& run) {
  return absl::StrFormat("%-14s %8.2f %% %9.1f %11.0f %12.1f %12.1f\n", run.name,
                         run.accuracy * 100, run.seconds, run.samples_per_second,
                         run.bytes_pushed / kMiB, run.bytes_pulled / kMiB);
}

std::string Ratio(double value, double base) {
  return base > 0 ? absl::StrFormat("%.2fx", value / base) : "-";
}

std::string ComparisonRow(const RunReport& run, const RunReport& base) {
  return absl::StrFormat(
      "%-14s %+8.2f pt %8s %11s %12s %12s\n", absl::StrCat(run.name, " / ", base.name),
      (run.accuracy - base.accuracy) * 100, Ratio(run.seconds, base.seconds),
      Ratio(run.samples_per_second, base.samples_per_second),
      Ratio(run.bytes_pushed, base.bytes_pushed),
      Ratio(run.bytes_pulled, base.bytes_pulled));
}

}  // namespace

std::string ToJson(const RunReport& report) { return ToJsonValue(report).dump(2) + "\n"; }

absl::StatusOr<RunReport> ParseRunReport(const std::string& json) {
  const Json object = Json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::InvalidArgumentError("a run report is one JSON object, and this is not");
  }
  RunReport report;
  FieldReader reader(object);
  reader.Read("name", report.name);
  reader.Read("precision", report.precision);
  reader.Read("rank", report.rank);
  reader.Read("workers", report.workers);
  reader.Read("steps", report.steps);
  reader.Read("parameters", report.parameters);
  reader.Read("accuracy", report.accuracy);
  reader.Read("loss", report.loss);
  reader.Read("seconds", report.seconds);
  reader.Read("samples_per_second", report.samples_per_second);
  reader.Read("bytes_pushed", report.bytes_pushed);
  reader.Read("bytes_pulled", report.bytes_pulled);
  if (!reader.status().ok()) return reader.status();
  return report;
}

absl::StatusOr<std::vector<RunReport>> MergeRanks(const std::vector<RunReport>& reports) {
  std::vector<RunReport> merged;
  std::set<std::pair<std::string, int64_t>> seen;
  for (const RunReport& report : reports) {
    if (!seen.emplace(report.name, report.rank).second) {
      return absl::InvalidArgumentError(absl::StrCat("two reports of rank ", report.rank,
                                                     " of run '", report.name, "'"));
    }
    auto run = std::ranges::find(merged, report.name, &RunReport::name);
    if (run == merged.end()) {
      merged.push_back(report);
      continue;
    }
    const int64_t pushed = run->bytes_pushed + report.bytes_pushed;
    const int64_t pulled = run->bytes_pulled + report.bytes_pulled;
    if (report.rank == 0) *run = report;
    run->bytes_pushed = pushed;
    run->bytes_pulled = pulled;
  }
  for (const RunReport& run : merged) {
    if (run.rank == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("run '", run.name, "' has no report of rank 0"));
  }
  return merged;
}

std::string SummaryJson(const std::vector<RunReport>& reports) {
  Json runs = Json::array();
  for (const RunReport& report : reports) runs.push_back(ToJsonValue(report));
  return Json{{"runs", runs}}.dump(2) + "\n";
}

std::string SummaryTable(const std::vector<RunReport>& reports) {
  std::string table =
      absl::StrFormat("%-14s %10s %9s %11s %12s %12s\n", "run", "accuracy", "seconds",
                      "samples/s", "pushed MiB", "pulled MiB");
  for (const RunReport& report : reports) table += TableRow(report);
  if (reports.size() > 1) table += ComparisonRow(reports.back(), reports.front());
  return table;
}

std::string RankPath(const std::string& path, int64_t rank) {
  return rank == 0 ? path : absl::StrCat(path, ".rank", rank);
}

absl::StatusOr<RunReport> ReadRunReport(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::ostringstream text;
  text << file.rdbuf();
  absl::StatusOr<RunReport> report = ParseRunReport(text.str());
  if (!report.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", report.status().message()));
  }
  return report;
}

absl::StatusOr<std::vector<RunReport>> ReadRuns(const std::vector<std::string>& paths) {
  std::vector<RunReport> reports;
  for (const std::string& path : paths) {
    SYNCLINE_ASSIGN_OR_RETURN(reports.emplace_back(), ReadRunReport(path));
  }
  return MergeRanks(reports);
}

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  std::error_code ignored;  // the open below says what is wrong
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace syncline::fashion_mnist
