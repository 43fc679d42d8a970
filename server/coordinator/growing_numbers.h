// Numbers of names that only grow, also across restarts: epochs of jobs, lives of
// servers. Names come from outside without end, so those that nobody uses are forgotten
// once there are many; what comes back begins above all that was forgotten.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"

namespace syncline {

class GrowingNumbers {
 public:
  GrowingNumbers() = default;
  // As stored.
  GrowingNumbers(std::map<std::string, uint64_t> values, uint64_t floor)
      : values_(std::move(values)), floor_(floor) {}

  uint64_t Of(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? floor_ : found->second;
  }
  uint64_t Next(const std::string& name) {
    const uint64_t next = Of(name) + 1;
    values_[name] = next;
    return next;
  }
  void AtLeast(const std::string& name, uint64_t value) {
    if (Of(name) < value) values_[name] = value;
  }
  // Forgets names out of use when there are more than `most`.
  void Prune(size_t most, absl::FunctionRef<bool(const std::string&)> is_used) {
    if (values_.size() <= most) return;
    std::erase_if(values_, [&](const auto& entry) {
      if (is_used(entry.first)) return false;
      floor_ = std::max(floor_, entry.second);
      return true;
    });
  }

  const std::map<std::string, uint64_t>& values() const { return values_; }
  uint64_t floor() const { return floor_; }

 private:
  std::map<std::string, uint64_t> values_;
  uint64_t floor_ = 0;  // the highest that was forgotten
};

}  // namespace syncline
