#include "server/coordinator/reasons.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncline {
namespace {

constexpr size_t kMaxShown = 3;  // so that the line stays short

}  // namespace

std::string_view EpochCauseName(EpochCause cause) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "begin",      "join",   "leave",       "death", "settings",
      "checkpoint", "server", "coordinator", "answer"};
  return kNames[static_cast<size_t>(cause)];
}

void Reasons::Add(EpochCause cause, std::string reason) {
  causes_.insert(cause);
  Show(std::move(reason));
}

void Reasons::Show(std::string reason) {
  if (shown_.size() < kMaxShown) return shown_.push_back(std::move(reason));
  ++others_;
}

void Reasons::Add(Reasons more) {
  causes_.merge(more.causes_);
  for (std::string& reason : more.shown_) Show(std::move(reason));
  others_ += more.others_;
}

std::string Reasons::Text() const {
  const std::string text = absl::StrJoin(shown_, "; ");
  if (others_ == 0) return text;
  return absl::StrCat(text, "; and ", others_, others_ == 1 ? " other" : " others");
}

}  // namespace syncline
