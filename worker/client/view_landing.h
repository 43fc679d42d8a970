// How published views land in the weights that a worker holds.
//
// A view is whole (values take the place of what is held) or, tile by tile, a delta to
// the version before. A worker whose own values are the servers' gets a word instead of the
// first one (kFlagHeld), and rounds its values as they would. Weights that are not FP32
// take whole views only. Whatever cannot land leaves
// the weights as they are, but for a view whose sum turns out not to be the servers'.
//
// Thread safety: Land and IsShort may be called by several threads at once, for different
// weights; the rest is the exchange's.
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
  // `pool` outlives it.
  ViewLanding(const ExchangeOptions& options, BufferPool& pool)
      : options_(options), pool_(pool) {}

  // Weights come densely, or in FP32 where deltas go.
  CodecSet Codecs(uint32_t tensor) const;

  struct Place {
    BlockRange range = {};
    std::optional<uint64_t> version = std::nullopt;  // that `weights` hold
    MemoryView weights = {};
    bool is_own = false;  // `weights` are still what the program declared
  };
  // Of the view that these weights are when they are published as the first ones.
  uint64_t Digest(const BlockRange& range, const ConstMemoryView& weights);
  enum class Result {
    kIgnored,  // it does not parse, or is no delta to what is held
    kLanded,
    kDiverged,  // the servers hold something else: only the whole view helps
  };
  // Weights of a GPU are written once this returns, unless the GPU failed: then its
  // device()->status() says so, and the result has no meaning.
  Result Land(const MessageHeader& header, ByteView payload, const Place& place,
              CodecWorkspace& workspace) const;
  // Whether that is quickly done: little, or no more than a copy.
  bool IsShort(const MessageHeader& header, const Place& place) const;

 private:
  const Codec& WholeCodec(uint32_t tensor) const;
  // Whether encoding and decoding leave weights of this type as they are.
  static bool IsExact(const Codec& codec, DType dtype);
  void LandHeld(const Place& place, std::vector<float>& scratch) const;

  const ExchangeOptions options_;
  BufferPool& pool_;
  std::vector<float> scratch_;  // a tile, for digests of weights that are not FP32
};

}  // namespace syncline
