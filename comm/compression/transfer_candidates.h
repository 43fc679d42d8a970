// The codecs that preset auto chooses from (policy/codec_policy.h).
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/compression/policy/codec_policy.h"
#include "comm/compression/transfer.h"

namespace syncline {

// Makes the candidates in the order of Candidate; kBlocks only if options.by_statistics.
// Top-k sends int8 values. Fails with InvalidArgument if the ratio is invalid.
absl::StatusOr<std::vector<SharedCodec>> MakeCandidates(
    const CodecPolicyOptions& options);

// Returns one codec for each id; it decodes all candidates with this id.
CodecSet AcceptedOf(std::span<const SharedCodec> candidates);

}  // namespace syncline
