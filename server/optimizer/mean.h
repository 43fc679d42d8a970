// The optimizer of a tensor with mean=1, whatever that of its job: the tensor becomes the
// mean of what the workers push, of those whose contribution counts. No learning rate,
// schedule, clipping or other transform holds for it, and it has no part in the global
// norm. A step that the job skips, because some gradient is not finite, counts for it all
// the same. So workers keep books on the servers that change with the weights, in the same
// steps and by the same contributions: syncline.torch's sampler does.
//
// Thread safety: as of any optimizer.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "server/optimizer/optimizer.h"

namespace syncline {

bool TakesMean(const GroupOptions& group);
// InvalidArgument when such a tensor asks for anything else besides.
absl::Status CheckMean(const GroupOptions& group);
std::unique_ptr<Optimizer> MakeMean();

}  // namespace syncline
