#include "comm/base/nearest.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace syncline {

size_t EditDistance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    return absl::ascii_tolower(x) == absl::ascii_tolower(y);
  };
  // Three rows of the table: two characters back, one back, now.
  std::vector<size_t> before_last(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) now[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, now);
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
        now[j] = std::min(now[j], before_last[j - 2] + 1);
      }
    }
  }
  return now[b.size()];
}

std::string_view NearestName(std::string_view name,
                             std::span<const std::string_view> candidates) {
  std::string_view nearest;
  size_t least = std::numeric_limits<size_t>::max();
  for (const std::string_view candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    const size_t limit = (std::max(name.size(), candidate.size()) + 2) / 3;
    if (distance > limit || distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string DidYouMean(std::string_view name,
                       std::span<const std::string_view> candidates) {
  const std::string nearest(NearestName(name, candidates));
  return nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?");
}

}  // namespace syncline
