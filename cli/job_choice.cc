#include "cli/job_choice.h"

#include <set>
#include <string_view>
#include <vector>

#include "comm/base/unknown_job.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

}  // namespace

absl::StatusOr<std::string> StatusOfJob(const std::string& json, const std::string& job) {
  if (job.empty()) return json;
  Json status = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) return absl::InternalError("a status that is no JSON");
  std::set<std::string> known;
  Json chosen = Json::array();
  for (const Json& one : status.value("jobs", Json::array())) {
    known.insert(one.value("name", ""));
    if (one.value("name", "") == job) chosen.push_back(one);
  }
  if (chosen.empty()) {
    const std::vector<std::string_view> names(known.begin(), known.end());
    return UnknownJob(job, names, JobSet::kKnown);
  }
  status["jobs"] = std::move(chosen);
  return status.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace syncline
