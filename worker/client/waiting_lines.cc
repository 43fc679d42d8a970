#include "worker/client/waiting_lines.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"

namespace syncline {
namespace {

constexpr absl::Duration kFirstInterval = absl::Seconds(1);
constexpr absl::Duration kLongestInterval = absl::Minutes(1);

// Whether the text after a number is the unit " s". "12 s" has it, "12 servers" does not.
bool AreSeconds(std::string_view rest) {
  return rest.substr(0, 2) == " s" &&
         (rest.size() == 2 || !absl::ascii_isalnum(static_cast<unsigned char>(rest[2])));
}

std::string WithoutSeconds(std::string_view reason) {
  std::string cause;
  while (!reason.empty()) {
    size_t digits = 0;
    while (digits < reason.size() &&
           absl::ascii_isdigit(static_cast<unsigned char>(reason[digits]))) {
      ++digits;
    }
    const bool are_seconds = digits > 0 && AreSeconds(reason.substr(digits));
    const size_t taken = std::max<size_t>(1, digits);
    if (!are_seconds) cause.append(reason.substr(0, taken));
    reason.remove_prefix(taken + (are_seconds ? 2 : 0));
  }
  // The first "waiting for server 1 of 2" has no time and no comma yet.
  while (!cause.empty() && (cause.back() == ',' || cause.back() == ' ')) cause.pop_back();
  return cause;
}

}  // namespace

bool WaitingLines::IsDue(std::string_view reason, absl::Duration now) {
  std::string cause = WithoutSeconds(reason);
  if (cause != cause_) {
    cause_ = std::move(cause);
    interval_ = kFirstInterval;
  } else if (now < due_at_) {
    return false;
  } else {
    interval_ = std::min(2 * interval_, kLongestInterval);
  }
  due_at_ = now + interval_;
  return true;
}

}  // namespace syncline
