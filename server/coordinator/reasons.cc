#include "server/coordinator/reasons.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncline {
namespace {

constexpr size_t kMaxShown = 3;  // a line that people read to its end

}  // namespace

void Reasons::Add(std::string reason) {
  if (shown_.size() < kMaxShown) return shown_.push_back(std::move(reason));
  ++others_;
}

void Reasons::Add(Reasons more) {
  for (std::string& reason : more.shown_) Add(std::move(reason));
  others_ += more.others_;
}

std::string Reasons::Text() const {
  const std::string text = absl::StrJoin(shown_, "; ");
  if (others_ == 0) return text;
  return absl::StrCat(text, "; and ", others_, others_ == 1 ? " other" : " others");
}

}  // namespace syncline
