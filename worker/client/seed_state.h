// The optimizer state that a tensor starts with, if the program provides one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace syncline {

// All arrays of the optimizer, in the order of its slots, each as long as the tensor.
struct SeedState {
  uint64_t updates = 0;  // number of updates of the tensor so far; 0: there is no state
  std::vector<std::span<const float>> arrays = {};
};

}  // namespace syncline
