// The codecs that preset auto chooses from (policy/codec_policy.h).
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/compression/policy/codec_policy.h"
#include "comm/compression/transfer.h"

namespace syncline {

// In the order of Candidate; kBlocks only if options.by_statistics. Top-k sends int8
// values. InvalidArgument if the ratio is none.
absl::StatusOr<std::vector<SharedCodec>> MakeCandidates(
    const CodecPolicyOptions& options);

// One of each id, which decodes all candidates with this id.
CodecSet AcceptedOf(std::span<const SharedCodec> candidates);

}  // namespace syncline
