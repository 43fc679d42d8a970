// TopView: draws recent events, one line each.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/top_view.h"
#include "comm/base/printable.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr size_t kOfServers = 4;

}  // namespace

std::vector<std::string> TopView::EventsOf(const Json& status) {
  std::vector<std::string> lines;
  for (const Json& event : status.value("events", Json::array())) {
    const auto ms = static_cast<int64_t>(event.value("time", 0.0) * 1000);
    lines.push_back(absl::StrFormat(
        "  %s %9d  %-10s %s",
        absl::FormatTime("%H:%M:%S", absl::FromUnixMillis(ms), absl::LocalTimeZone()),
        event.value("step", uint64_t{0}), Printable(event.value("kind", "")),
        Printable(event.value("what", ""))));
  }
  return lines;
}

// The latest event comes first, so that it stays in place if the window is low.
void TopView::DrawEvents(const Job* job, const TopSize& size,
                         std::vector<TopLine>& lines) const {
  const auto draw = [&lines](const std::vector<std::string>& events, size_t most) {
    const size_t shown = std::min(events.size(), most);
    for (size_t i = 0; i < shown; ++i) lines.push_back({events[events.size() - 1 - i]});
  };
  const std::string columns =
      absl::StrFormat("  %-8s %9s  %-10s ", "TIME", "STEP", "EVENT");
  lines.push_back({columns + "WHAT (syncline events has more)", TopLine::Tone::kHeader});
  const size_t room = size.rows > lines.size() + 2 ? size.rows - lines.size() - 2 : 0;
  const size_t of_servers = std::min(events_.size(), kOfServers);
  if (job != nullptr) draw(job->events, room > of_servers ? room - of_servers : 0);
  draw(events_, job == nullptr ? room : of_servers);
}

}  // namespace syncline
