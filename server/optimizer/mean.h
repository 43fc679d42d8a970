// The optimizer of a tensor with mean=1, independent of the job's optimizer. The tensor
// becomes the mean of the values that workers push, over the contributions that count.
// Learning rate, schedule, clipping and other transforms do not apply to it, and it is
// not part of the global norm. If a step is skipped because some gradient is not finite,
// the mean is still taken.
//
// With it, workers keep records on the servers that change in the same steps as the
// weights, and by the same contributions. The sampler of syncline.torch does this.
//
// Thread safety: as for any Optimizer.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "server/optimizer/optimizer.h"

namespace syncline {

bool TakesMean(const GroupOptions& group);
// Fails with InvalidArgument if a tensor with mean=1 has other options, too.
absl::Status CheckMean(const GroupOptions& group);
std::unique_ptr<Optimizer> MakeMean();

}  // namespace syncline
