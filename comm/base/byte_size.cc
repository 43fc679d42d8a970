#include "comm/base/byte_size.h"

#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncline {
namespace {

constexpr double kKi = 1024;
constexpr std::array<std::pair<const char*, double>, 10> kUnits = {
    {{"", 1},
     {"k", 1e3},
     {"K", 1e3},
     {"M", 1e6},
     {"G", 1e9},
     {"T", 1e12},
     {"Ki", kKi},
     {"Mi", kKi* kKi},
     {"Gi", kKi* kKi* kKi},
     {"Ti", kKi* kKi* kKi* kKi}}};
// Far above the memory of any machine, and exact as a double.
constexpr double kMost = 1e15;

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(std::string_view written) {
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("'", std::string(written),
                   "' is not an amount of memory; write 8GiB, 512Mi or 16G"));
  const size_t digits = written.find_first_not_of("0123456789.");
  const std::string_view number = written.substr(0, digits);
  std::string unit(digits == std::string_view::npos ? "" : written.substr(digits));
  if (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  if (!unit.empty() && unit.back() == 'B') unit.pop_back();
  double value = 0;
  if (!absl::SimpleAtod(std::string(number), &value)) return wrong;
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    if (!(value * factor <= kMost)) return wrong;
    return static_cast<uint64_t>(value * factor);
  }
  return wrong;
}

std::string FormatByteSize(uint64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kNames.size()) {
    value /= kKi;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B")
                   : absl::StrFormat("%.1f %s", value, kNames[unit]);
}

}  // namespace syncline
