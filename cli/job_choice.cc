#include "cli/job_choice.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/printable.h"
#include "comm/base/unknown_job.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

std::string IsStarting(const std::string& job) {
  return absl::StrCat("job '", Printable(job),
                      "' is starting: none of its workers has joined yet");
}

}  // namespace

std::string NoJobs(const std::vector<std::string>& starting) {
  if (starting.empty()) return "no jobs yet";
  return absl::StrJoin(starting, "\n", [](std::string* out, const std::string& job) {
    out->append(IsStarting(job));
  });
}

absl::StatusOr<std::string> StatusOfJob(const std::string& json, const std::string& job,
                                        const std::vector<std::string>& starting) {
  if (job.empty()) return json;
  Json status = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) return absl::InternalError("a status that is not JSON");
  std::set<std::string> known;
  Json chosen = Json::array();
  for (const Json& one : status.value("jobs", Json::array())) {
    known.insert(one.value("name", ""));
    if (one.value("name", "") == job) chosen.push_back(one);
  }
  if (chosen.empty() && std::ranges::count(starting, job) > 0) {
    return absl::NotFoundError(IsStarting(job));
  }
  if (chosen.empty()) {
    const std::vector<std::string_view> names(known.begin(), known.end());
    return UnknownJob(job, names, JobSet::kKnown);
  }
  status["jobs"] = std::move(chosen);
  return status.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace syncline
