// What a worker has to encode, one block at a time: the exchange asks for it, and some
// thread does it. It holds all that it needs and touches nothing else, so different works
// may run at once, on any threads and in any order: the bytes are the same.
//
//   CodecWorkspace workspace;                       // of this thread
//   work->Run(workspace);                           // ExchangeEncode::work
//   outputs = exchange.Encoded(*work, clock.Now());  // on the exchange's own thread
//
// Thread safety: one thread runs it, and hands it back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "comm/base/buffer.h"
#include "comm/base/env.h"
#include "comm/codec/frame.h"
#include "comm/compression/memory/gradient_memory.h"
#include "comm/compression/transfer.h"
#include "worker/client/codec_cost.h"
#include "worker/client/codec_workspace.h"
#include "worker/client/kept_gradient.h"
#include "worker/client/memory_view.h"

namespace syncline {

// What is encoded of a block.
struct GradientBlock {
  uint32_t block = 0;
  BlockLabel label = {};
  ConstMemoryView gradient = {};  // the whole tensor's
  GradientUnits units = {};
};

class EncodeWork {
 public:
  struct Dense {
    const Codec* codec = nullptr;
    Checksum checksum = Checksum::kHeaderOnly;
    // Of MaxBlockBytes. Null: FP32 is borrowed from the gradient, with headers from `pool`.
    std::shared_ptr<std::byte> memory = nullptr;
    BufferPool* pool = nullptr;
    // With an owner: these bytes of the gradient are sent, instead of all that.
    Slice lent = {};
  };
  // By the kernels of the GPU that has the gradient.
  struct OnDevice {
    SynclineCudaCodec encoder = {};
    KeptGradient::Place kept = {};
    float decay = 1;
  };
  struct Compressed {
    Transfer transfer = {};
    Checksum checksum = Checksum::kHeaderOnly;
    GradientMemory* kept = nullptr;  // null: on_device
    std::optional<OnDevice> on_device = std::nullopt;
    float threshold = 0;
    std::shared_ptr<std::byte> memory = nullptr;  // of `room` bytes
    size_t room = 0;
  };
  // The threshold of the whole tensor, before any of its blocks is encoded.
  struct Survey {
    const GradientMemory* kept = nullptr;
    uint64_t count = 0;
  };
  struct Options {
    uint32_t job = 0;
    uint32_t rank = 0;
    const Clock* clock = nullptr;  // null: the cost is not measured
    bool is_traced = true;
  };

  EncodeWork(const Options& options, const GradientBlock& contribution, Dense dense);
  EncodeWork(const Options& options, const GradientBlock& contribution,
             Compressed compressed);
  EncodeWork(const Options& options, const GradientBlock& contribution, Survey survey);

  // Once.
  void Run(CodecWorkspace& workspace);

  // Whether another thread would cost more than it takes from this one: little, or no more
  // than a copy. It then runs on the exchange's own thread, and must where it takes memory
  // of a pool.
  bool IsShort() const;
  bool IsSurvey() const { return survey_.has_value(); }
  bool IsCompressed() const { return compressed_.has_value(); }

  const GradientBlock& contribution() const { return contribution_; }
  // REQUIRES: IsCompressed().
  const Transfer& transfer() const { return compressed_->transfer; }
  size_t room() const { return compressed_->room; }

  // ---- What it came to ----
  // Of the GPU whose memory was read; nothing else can fail. What it came to besides has a
  // meaning only where this is OK.
  const absl::Status& status() const { return status_; }
  Payload TakePayload() { return std::move(payload_); }
  float threshold() const { return threshold_; }
  const CodecCost& cost() const { return cost_; }  // of what is compressed
  // The exchange's thread could do nothing else meanwhile.
  bool held_up_exchange() const { return held_up_exchange_; }
  // That was looked at, tile by tile.
  const std::vector<GradientMemory::Squares>& squares() const { return squares_; }

 private:
  std::span<const float> Read(CodecWorkspace& workspace, uint64_t first,
                              size_t elements) const;
  void EncodeDense(CodecWorkspace& workspace);
  // A GPU's gradient of the block to the host. False after an error.
  bool Fetch(CodecWorkspace& workspace);
  // Of a whole block at once: it is copied as it is, or rounded there.
  bool IsCopiedFromDevice() const;
  void CopyFromDevice(CodecWorkspace& workspace);
  void EncodeTiles(CodecWorkspace& workspace);
  void EncodeTilesOnDevice(CodecWorkspace& workspace);
  // False: the bytes are no encoding.
  bool EndTileOnDevice(CodecWorkspace& workspace, uint32_t tile, ByteView encoded,
                       BlockWriter& writer);
  void LookAtKept(uint32_t tile);
  void LookAtAll(CodecWorkspace& workspace);
  void Trace(TraceTrack& track, int64_t began) const;

  const Options options_;
  const GradientBlock contribution_;
  std::optional<Dense> dense_;
  std::optional<Compressed> compressed_;
  std::optional<Survey> survey_;
  // The block's elements where a GPU's were fetched, in the queue's memory.
  std::optional<ConstMemoryView> fetched_;
  absl::Status status_;
  Payload payload_;
  float threshold_ = 0;
  CodecCost cost_;
  bool held_up_exchange_ = false;
  std::vector<GradientMemory::Squares> squares_;
};

}  // namespace syncline
