// Numbers, by name, that only grow, also across coordinator restarts: epochs of jobs,
// incarnations of servers. New names come without limit, so unused ones are forgotten
// once there are many. A forgotten name that comes back continues above all forgotten
// numbers. Thread safety: none.
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
  // Restores stored numbers.
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
  // Forgets unused names if there are more than `most` names.
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
  uint64_t floor_ = 0;  // highest number that was forgotten
};

}  // namespace syncline
