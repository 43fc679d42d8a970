#include "worker/examples/fashion_mnist/dataset.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "worker/examples/fashion_mnist/idx_file.h"

namespace syncline::fashion_mnist {
namespace {

absl::StatusOr<Samples> LoadSamples(const std::string& prefix, uint32_t count) {
  constexpr uint32_t kSide = kImageSide;
  Samples samples;
  SYNCLINE_ASSIGN_OR_RETURN(samples.images, ReadIdxFile(prefix + "-images-idx3-ubyte.gz",
                                                        {count, kSide, kSide}));
  SYNCLINE_ASSIGN_OR_RETURN(samples.labels,
                            ReadIdxFile(prefix + "-labels-idx1-ubyte.gz", {count}));
  const auto bad = std::ranges::find_if(samples.labels,
                                        [](uint8_t label) { return label >= kClasses; });
  if (bad != samples.labels.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, ": label ", *bad, " of sample ",
                     bad - samples.labels.begin(), " is not below ", kClasses));
  }
  return samples;
}

absl::StatusOr<Dataset> LoadBoth(const std::string& directory) {
  Dataset dataset;
  SYNCLINE_ASSIGN_OR_RETURN(dataset.train,
                            LoadSamples(directory + "/train", kTrainSamples));
  SYNCLINE_ASSIGN_OR_RETURN(dataset.test, LoadSamples(directory + "/t10k", kTestSamples));
  return dataset;
}

}  // namespace

absl::StatusOr<Dataset> LoadDataset(const std::string& directory) {
  absl::StatusOr<Dataset> dataset = LoadBoth(directory);
  if (absl::IsNotFound(dataset.status())) {
    return absl::NotFoundError(
        absl::StrCat("no Fashion-MNIST here (", dataset.status().message(),
                     "); install it with: apt-get install dataset-fashion-mnist, or pass "
                     "--data-dir"));
  }
  return dataset;
}

}  // namespace syncline::fashion_mnist
