#include "comm/base/unknown_job.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/limits.h"
#include "comm/base/nearest.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

constexpr size_t kNamesShown = 10;

std::string Listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string list =
      absl::StrCat("'", absl::StrJoin(names.begin(), names.begin() + shown, "', '"), "'");
  if (shown < names.size())
    absl::StrAppend(&list, " and ", names.size() - shown, " more");
  return list;
}

}  // namespace

absl::Status UnknownJob(std::string_view name, std::span<const std::string_view> names,
                        JobSet set) {
  // The edit distance to a very long name would take long.
  const std::string asked = Printable(name, kMaxJobNameBytes);
  std::string message = set == JobSet::kRunning
                            ? absl::StrCat("no job '", asked, "' is running")
                            : absl::StrCat("there is no job '", asked, "'");
  const std::string nearest(NearestName(asked, names));
  std::vector<std::string> others;
  for (const std::string_view one : names) {
    if (one != nearest) others.push_back(Printable(one, kMaxJobNameBytes));
  }
  if (!nearest.empty()) {
    absl::StrAppend(&message, "; did you mean '", Printable(nearest), "'?");
  }
  if (names.empty()) {
    message += set == JobSet::kRunning ? "; none is" : "; there are none";
  } else if (!others.empty()) {
    const char* verb = others.size() == 1 ? "is" : "are";
    absl::StrAppend(&message, nearest.empty() ? "; there " : " There ", verb,
                    nearest.empty() ? " " : " also ", Listed(others));
  }
  return absl::NotFoundError(message);
}

}  // namespace syncline
