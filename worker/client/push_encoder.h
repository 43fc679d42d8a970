// Creates the encoding requests (encode_work.h) of contributions, and keeps the bytes of
// those that cannot be encoded twice: what a lossy encoding loses goes into the tensor's
// error feedback at once, so a repetition sends the same bytes with the present epoch.
//
//   if (auto payload = encoder.Repeated(contribution)) Send(*payload);
//   auto work = encoder.Ask(contribution);  // some thread runs it
//   Payload payload = encoder.Take(*work);  // empty after a survey: Ask again
//
// Thread safety: none; the exchange owns it. While a request of a tensor is under way, it
// owns the tensor's error feedback and gradient.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/frame.h"
#include "comm/compression/memory/gradient_memory.h"
#include "worker/client/codec_chooser.h"
#include "worker/client/codec_cost.h"
#include "worker/client/encode_work.h"
#include "worker/client/exchange_options.h"
#include "worker/client/kept_gradient.h"
#include "worker/client/memory_view.h"

namespace syncline {

class PushEncoder {
 public:
  // `elements`: number of elements of each tensor. `pool` must outlive the encoder.
  PushEncoder(const ExchangeOptions& options, std::span<const uint64_t> elements,
              BufferPool& pool);

  // Returns the bytes of the block's previous encoding. Empty if there is none, or if
  // encoding again gives the same bytes.
  std::optional<Payload> Repeated(const GradientBlock& contribution);
  // Creates the next request for the block: its encoding, or a survey of its tensor
  // first. While a survey is under way, its tensor has no other request. Dense FP32 is
  // sent from the memory of an FP32 gradient, unless options.push_memory takes it.
  std::shared_ptr<EncodeWork> Ask(const GradientBlock& contribution);
  // Creates a request that sends the contribution in FP32: error feedback of a worker
  // that leaves.
  std::shared_ptr<EncodeWork> AskParting(const GradientBlock& contribution) {
    return AskDense(contribution, *options_.seed_codec);
  }
  // Takes the result of a request that was run. Empty for a survey, and if a GPU failed.
  Payload Take(EncodeWork& work);
  // Ask, Run and Take on this thread.
  Payload Encode(const GradientBlock& contribution);

  // The contribution was not counted: adds it to the tensor's error feedback, if it has
  // any.
  void TakeBack(const GradientBlock& contribution);

  // Encodes a block that was not sent yet, and keeps the bytes for TakeBack. Call it for
  // all blocks of a tensor before the first TakeBack, so that error feedback that is on a
  // GPU is moved to the host only once.
  void EncodeUnsent(const GradientBlock& contribution);
  // Returns the error feedback of a tensor, which a worker that leaves has to send. Empty
  // if there is none. The tensor's error feedback is invalid afterwards.
  std::span<const float> Settle(uint32_t tensor, const GradientUnits& units);

  // The tensor's error feedback on the host, where it is moved if a GPU holds it;
  // kept_status() says whether that succeeded.
  GradientMemory& memory(uint32_t tensor) { return kept_[tensor].OnHost(); }
  // Not OK after a GPU failed that held error feedback.
  absl::Status kept_status() const;
  // The cost of compressed contributions.
  const CodecCost& cost() const { return cost_; }
  // The part of it that ran on the exchange's thread.
  absl::Duration cost_here() const { return cost_here_; }
  // Reports that `bytes` took `time` on the wire.
  void Sent(size_t bytes, absl::Duration time) {
    chooser_.Sent({.bytes = bytes, .time = time});
  }
  // The codec that push_codec=auto chose, and why. Empty if the job names a codec.
  const std::string& choice() const { return chooser_.Reason(); }
  // Recent |residual| / |gradient| of all tensors together; 0: unknown.
  double residual_ratio() const;

  // The block's contribution was counted: drops its bytes.
  void Forget(uint32_t block) { sent_.erase(block); }

 private:
  struct SentBlock {
    Payload payload = {};
    uint64_t epoch = 0;
  };
  // The threshold of a selector that looks at the whole tensor.
  struct Threshold {
    std::optional<uint64_t> step = std::nullopt;
    float value = 0;
  };

  EncodeWork::Options WorkOptions() const {
    return {.job = options_.job, .rank = options_.rank, .clock = options_.clock};
  }
  GradientBlock Labelled(GradientBlock contribution) const;
  std::shared_ptr<EncodeWork> AskDense(const GradientBlock& contribution,
                                       const Codec& codec);
  std::shared_ptr<EncodeWork> AskCompressed(const GradientBlock& contribution,
                                            const Transfer& given);
  // Reads `elements` elements from `first` on. Valid until the next call.
  std::span<const float> Read(const GradientBlock& contribution, uint64_t first,
                              size_t elements);
  // How the GPU that holds the gradient encodes it. Empty if it does not.
  std::optional<EncodeWork::OnDevice> OnDevice(const GradientBlock& contribution,
                                               const Transfer& transfer);
  void Keep(const GradientMemory::Squares& squares, uint32_t tensor);
  // Reports the time and size of the block's encoding to the chooser.
  void Measure(const EncodeWork& work, const Payload& payload);
  // The block's values in place if their memory is lent; otherwise a slice without an
  // owner.
  Slice LentValues(const GradientBlock& contribution, const Codec& codec) const;
  std::shared_ptr<std::byte> LentMemory(size_t bytes) const;
  std::shared_ptr<std::byte> Memory(size_t bytes) const;
  Payload Fitted(Payload payload, size_t room) const;

  const ExchangeOptions options_;
  BufferPool& pool_;
  std::vector<KeptGradient> kept_;                // of the tensors, in order
  std::unordered_map<uint32_t, SentBlock> sent_;  // by block
  CodecChooser chooser_;
  std::vector<Threshold> thresholds_;  // by tensor
  CodecWorkspace workspace_ = {.is_of_exchange = true};
  CodecCost cost_;
  absl::Duration cost_here_ = absl::ZeroDuration();
  std::vector<GradientMemory::Squares> squares_;  // by tensor, recent
  GradientMemory::Squares all_squares_;           // their sums
};

}  // namespace syncline
