// A request to encode one block: the exchange creates it, and any thread runs it. It
// holds everything it needs and touches nothing else, so several may run at once, on any
// threads and in any order, with the same bytes as result.
//
//   CodecWorkspace workspace;                       // one for each thread
//   work->Run(workspace);                           // ExchangeEncode::work
//   outputs = exchange.Encoded(*work, clock.Now());  // on the exchange's own thread
//
// Thread safety: one thread at a time.
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

// A block and the gradient that it is encoded from.
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
    // Output of MaxBlockBytes. Null: FP32 is sent from the gradient's own memory, with
    // headers from `pool`.
    std::shared_ptr<std::byte> memory = nullptr;
    BufferPool* pool = nullptr;
    // If it has an owner, these bytes of the gradient are sent as they are.
    Slice lent = {};
  };
  // Encoding by the kernels of the GPU that holds the gradient.
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
    std::shared_ptr<std::byte> memory = nullptr;  // output, `room` bytes
    size_t room = 0;
  };
  // Computes the threshold of the whole tensor, before any of its blocks is encoded.
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

  // Encodes. Call it once.
  void Run(CodecWorkspace& workspace);

  // Whether handing it to another thread would cost more than running it: it is small, or
  // no more than a copy. It then runs on the exchange's own thread, which is required if
  // it uses `pool`.
  bool IsShort() const;
  bool IsSurvey() const { return survey_.has_value(); }
  bool IsCompressed() const { return compressed_.has_value(); }

  const GradientBlock& contribution() const { return contribution_; }
  // REQUIRES: IsCompressed().
  const Transfer& transfer() const { return compressed_->transfer; }
  size_t room() const { return compressed_->room; }

  // ---- Results ----
  // An error of the GPU whose memory was read; nothing else can fail. The other results
  // are valid only if this is OK.
  const absl::Status& status() const { return status_; }
  Payload TakePayload() { return std::move(payload_); }
  float threshold() const { return threshold_; }
  const CodecCost& cost() const { return cost_; }  // of compression; 0 for Dense
  // Whether it ran on the exchange's thread.
  bool held_up_exchange() const { return held_up_exchange_; }
  // Squared norms of the gradient and its residual, for each tile that was sampled.
  const std::vector<GradientMemory::Squares>& squares() const { return squares_; }

 private:
  std::span<const float> Read(CodecWorkspace& workspace, uint64_t first,
                              size_t elements) const;
  void EncodeDense(CodecWorkspace& workspace);
  // Copies the block's gradient from the GPU to the host. Returns false after an error.
  bool Fetch(CodecWorkspace& workspace);
  // Whether the whole block is copied from the GPU at once, as it is or rounded there.
  bool IsCopiedFromDevice() const;
  void CopyFromDevice(CodecWorkspace& workspace);
  void EncodeTiles(CodecWorkspace& workspace);
  void EncodeTilesOnDevice(CodecWorkspace& workspace);
  // Returns false if the kernel's bytes are not a valid encoding.
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
  // The block's elements in the device queue's memory, if they were fetched from a GPU.
  std::optional<ConstMemoryView> fetched_;
  absl::Status status_;
  Payload payload_;
  float threshold_ = 0;
  CodecCost cost_;
  bool held_up_exchange_ = false;
  std::vector<GradientMemory::Squares> squares_;
};

}  // namespace syncline
