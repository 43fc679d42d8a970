// Formats reports about links, for people and for programs.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "cli/link_report.h"
#include "cli/output_width.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 80;
constexpr size_t kIndent = 6;
// Maximum number of good reports of a kind that get a line each. More are summed up.
constexpr size_t kLinesOfAKind = 4;

// Breaks the words after the result, and indents the further lines.
std::string Line(std::string_view begin, const std::string& words) {
  return BrokenLine(absl::StrFormat("%-*s", kIndent,
                                    absl::string_view(begin.data(), begin.size())) +
                        words,
                    kColumns, kIndent) +
         "\n";
}

// Returns "80 ms" or "1.2 s".
std::string InShort(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.3g ms", 1e3 * seconds)
                     : absl::StrFormat("%.1f s", seconds);
}

struct KindOfReport {
  std::string check;
  std::string role;
  std::string job;
  bool operator<(const KindOfReport& other) const {
    return std::tie(check, role, job) < std::tie(other.check, other.role, other.job);
  }
};

std::string Summary(const KindOfReport& kind, const std::vector<const LinkReport*>& all) {
  const auto seconds = [](const LinkReport* report) {
    return report->seconds.value_or(0);
  };
  const auto [least, most] = std::ranges::minmax_element(all, {}, seconds);
  const std::string who = absl::StrCat(all.size(), " ", kind.role, "s",
                                       kind.job.empty() ? "" : " of job ", kind.job);
  const std::string range =
      absl::StrCat(InShort(seconds(*least)), " to ", InShort(seconds(*most)));
  if (kind.check == "heartbeat") {
    return absl::StrCat(who, " -> coordinator: heartbeats ", range, " ago");
  }
  return absl::StrCat(who, ": a step takes ", range, " by itself");
}

}  // namespace

std::string ReportsAsText(const std::vector<LinkReport>& reports) {
  std::map<KindOfReport, std::vector<const LinkReport*>> fine;
  for (const LinkReport& report : reports) {
    const bool is_fine = report.result == Check::kOk && report.number.has_value();
    if (is_fine) fine[{report.check, report.role, report.job}].push_back(&report);
  }
  std::string text;
  std::map<Check::Result, size_t> counts;
  for (const LinkReport& report : reports) {
    ++counts[report.result];
    const KindOfReport kind = {report.check, report.role, report.job};
    const auto same = fine.find(kind);
    const bool is_one_of_many = report.result == Check::kOk && same != fine.end() &&
                                same->second.size() > kLinesOfAKind;
    if (is_one_of_many && same->second.front() != &report) continue;
    if (is_one_of_many) {
      text += Line(ResultName(Check::kOk), Summary(kind, same->second));
      continue;
    }
    text += Line(ResultName(report.result),
                 absl::StrCat(report.from, report.to.empty() ? "" : " -> ", report.to,
                              ": ", report.what));
    if (!report.change.empty()) {
      text += Line("", absl::StrCat("do: ", report.change));
    }
  }
  const std::string how = counts[Check::kFail] > 0   ? "not healthy"
                          : counts[Check::kWarn] > 0 ? "healthy, but slow"
                                                     : "healthy";
  return absl::StrCat(text, absl::StrFormat("%s: %d ok, %d warn, %d fail, %d not tried\n",
                                            how, counts[Check::kOk], counts[Check::kWarn],
                                            counts[Check::kFail], counts[Check::kNone]));
}

std::string ReportsAsJson(const std::string& coordinator,
                          const std::vector<LinkReport>& reports) {
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(); };
  Json links = Json::array();
  for (const LinkReport& report : reports) {
    links.push_back({{"result", ResultName(report.result)},
                     {"check", report.check},
                     {"role", report.role},
                     {"number", or_null(report.number)},
                     {"job", report.job},
                     {"from", report.from},
                     {"to", report.to},
                     {"seconds", or_null(report.seconds)},
                     {"limit_seconds", or_null(report.limit_seconds)},
                     {"what", report.what},
                     {"change", report.change}});
  }
  const Json json = {{"coordinator", coordinator},
                     {"result", ResultName(WorstOf(reports))},
                     {"links", std::move(links)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace syncline
