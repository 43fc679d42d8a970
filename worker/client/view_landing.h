// Writes published views to a worker's weights.
//
// A view is whole (its values replace the weights) or, tile by tile, a delta to the
// previous version. A worker whose own values are those of the servers receives a flag in
// place of the first view (kFlagHeld), and rounds its values as the servers do. Weights
// that are not FP32 accept whole views only. A view that cannot be used leaves the
// weights unchanged, except if the checksum of the result differs from the servers'.
//
// Thread safety: several threads may call Land and IsShort at once, for different
// weights. The exchange's thread calls the other functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/base/dtype.h"
#include "comm/base/tiling.h"
#include "comm/codec/frame.h"
#include "comm/transport/message.h"
#include "worker/client/codec_workspace.h"
#include "worker/client/exchange_options.h"
#include "worker/client/memory_view.h"

namespace syncline {

class ViewLanding {
 public:
  // `pool` must outlive it.
  ViewLanding(const ExchangeOptions& options, BufferPool& pool)
      : options_(options), pool_(pool) {}

  // The codecs that a view of the tensor may have.
  CodecSet Codecs(uint32_t tensor) const;

  struct Place {
    BlockRange range = {};
    std::optional<uint64_t> version = std::nullopt;  // the version in `weights`
    MemoryView weights = {};
    bool is_own = false;  // `weights` still hold what the program declared
  };
  // The digest of the view that servers seeded with these weights would publish first.
  uint64_t Digest(const BlockRange& range, const ConstMemoryView& weights);
  enum class Result {
    kIgnored,  // it does not parse, or is a delta to another version
    kLanded,
    kDiverged,  // the result differs from the servers' weights: pull the whole view
  };
  // Writes a view. Weights on a GPU are written when this returns. If the GPU failed,
  // device()->status() is an error, and the result is invalid.
  Result Land(const MessageHeader& header, ByteView payload, const Place& place,
              CodecWorkspace& workspace) const;
  // Whether Land is fast: the view is small, or writing it is no more than a copy.
  bool IsShort(const MessageHeader& header, const Place& place) const;

 private:
  const Codec& WholeCodec(uint32_t tensor) const;
  // Whether encoding and decoding leave weights of this type as they are.
  static bool IsExact(const Codec& codec, DType dtype);
  void LandHeld(const Place& place, std::vector<float>& scratch) const;

  const ExchangeOptions options_;
  BufferPool& pool_;
  std::vector<float> scratch_;  // one tile, for digests of weights that are not FP32
};

}  // namespace syncline
