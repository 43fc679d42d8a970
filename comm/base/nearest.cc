#include "comm/base/nearest.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"

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
  const auto nearest =
      std::min_element(candidates.begin(), candidates.end(),
                       [name](std::string_view a, std::string_view b) {
                         return EditDistance(name, a) < EditDistance(name, b);
                       });
  return nearest == candidates.end() ? std::string_view() : *nearest;
}

}  // namespace syncline
