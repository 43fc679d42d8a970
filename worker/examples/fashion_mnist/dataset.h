// Fashion-MNIST in memory: 28x28 grey images of ten kinds of clothes, 60,000 to train on
// and 10,000 to test with. Images stay bytes; the model scales them, batch by batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncline::fashion_mnist {

inline constexpr int64_t kImageSide = 28;
inline constexpr int64_t kImageBytes = kImageSide * kImageSide;
inline constexpr int64_t kClasses = 10;
inline constexpr int64_t kTrainSamples = 60'000;
inline constexpr int64_t kTestSamples = 10'000;

// Where the Debian package dataset-fashion-mnist puts the files.
inline constexpr char kDefaultDataDir[] = "/usr/share/datasets/fashion-mnist";

struct Samples {
  std::vector<uint8_t> images;  // size() x kImageBytes, row by row
  std::vector<uint8_t> labels;  // each < kClasses

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

struct Dataset {
  Samples train;
  Samples test;
};

// Loads and checks the four files of `directory`. NOT_FOUND names the package to install.
absl::StatusOr<Dataset> LoadDataset(const std::string& directory);

}  // namespace syncline::fashion_mnist
