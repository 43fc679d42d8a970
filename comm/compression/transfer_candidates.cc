#include "comm/compression/transfer_candidates.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "comm/base/status.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/codec/fp32/fp32.h"
#include "comm/codec/integer/integer.h"
#include "comm/codec/sign/sign.h"
#include "comm/codec/sparse/sparse.h"

namespace syncline {

absl::StatusOr<std::vector<SharedCodec>> MakeCandidates(
    const CodecPolicyOptions& options) {
  const SharedCodec int8 = MakeIntegerCodec({.bits = 8});
  SYNCLINE_ASSIGN_OR_RETURN(
      SharedCodec topk,
      MakeSparseCodec({.name = "topk",
                       .selector = {.kind = SelectorKind::kTopK, .ratio = options.ratio},
                       .values = int8}));
  std::vector<SharedCodec> candidates = {MakeBf16Codec(), int8, MakeSignCodec({}),
                                         std::move(topk)};
  if (!options.by_statistics) return candidates;
  // FP32, because rounding errors would prevent a block that was sent once from being
  // zero again.
  SYNCLINE_ASSIGN_OR_RETURN(SharedCodec blocks,
                            MakeSparseCodec({.name = "blocks",
                                             .selector = {.kind = SelectorKind::kBlocks},
                                             .values = MakeFp32Codec(),
                                             .also_decoded = {int8}}));
  candidates.push_back(std::move(blocks));
  return candidates;
}

CodecSet AcceptedOf(std::span<const SharedCodec> candidates) {
  CodecSet codecs;
  // In reverse order, because blocks take more bytes than top-k, which has the same id.
  for (size_t i = candidates.size(); i-- > 0;) {
    const Codec* const codec = candidates[i].get();
    const bool has_id = std::ranges::any_of(
        codecs, [&](const Codec* other) { return other->id() == codec->id(); });
    if (!has_id) codecs.push_back(codec);
  }
  return codecs;
}

}  // namespace syncline
