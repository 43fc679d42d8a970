#include "server/coordinator/readmission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

constexpr int kDeathsForgiven = 1;
constexpr int kMaxDoublings = 6;

}  // namespace

void Readmission::Lost(uint32_t rank, Cause cause, const Figures& figures) {
  Record& record = records_[rank];
  if (figures.contributed > record.contributed) {
    record = {.contributed = figures.contributed};
  }
  ++record.deaths;
  if (cause == Cause::kStoodStill) {
    record.deaths = std::max(record.deaths, kDeathsForgiven + 1);
  }
  const int beyond = record.deaths - kDeathsForgiven;
  if (beyond <= 0) return;
  record.may_join_at =
      figures.completed + (figures.trained << std::min(beyond - 1, kMaxDoublings));
}

bool Readmission::MayJoin(uint32_t rank, const Figures& figures) const {
  const auto record = records_.find(rank);
  // Servers report from time to time, so the rank may have contributed just before its
  // death.
  return record == records_.end() || figures.contributed > record->second.contributed ||
         figures.completed >= record->second.may_join_at;
}

std::string Readmission::Why(uint32_t rank) const {
  const auto record = records_.find(rank);
  const int deaths = record == records_.end() ? 0 : record->second.deaths;
  return absl::StrCat("rank ", rank, " was lost ", deaths,
                      " times without contributing anything; it may join after the "
                      "others have made a step without it");
}

}  // namespace syncline
