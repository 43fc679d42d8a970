// What a tensor's optimizer begins with, where a program brings it along.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace syncline {

// All arrays of the optimizer, in the order of its slots, each as long as the tensor.
struct SeedState {
  uint64_t updates = 0;  // of the tensor so far; 0: there is none
  std::vector<std::span<const float>> arrays = {};
};

}  // namespace syncline
