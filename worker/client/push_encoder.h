// Says what has to be encoded of contributions (encode_work.h), and keeps those that could
// not be encoded a second time: what a lossy encoding loses goes into the memory of its
// tensor at once, so a repetition sends the same bytes, under the epoch of the day.
//
//   if (auto payload = encoder.Repeated(contribution)) Send(*payload);
//   auto work = encoder.Ask(contribution);  // to some thread; what it came to:
//   Payload payload = encoder.Take(*work);  // of a survey nothing: then ask again
//
// Thread safety: none; the exchange owns it. While the work of a tensor is under way its
// memory and its gradient belong to the works.
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
  // `elements` of each tensor. `pool` outlives the encoder.
  PushEncoder(const ExchangeOptions& options, std::span<const uint64_t> elements,
              BufferPool& pool);

  // The bytes of the block's encoding before; nothing when there is none, or when encoding
  // it again gives the same.
  std::optional<Payload> Repeated(const GradientBlock& contribution);
  // What is to be done so that it can be sent: it is encoded, or the tensor is surveyed
  // first. Of one tensor a survey is under way alone. Dense FP32 is borrowed from a gradient
  // in FP32, unless options.push_memory takes it.
  std::shared_ptr<EncodeWork> Ask(const GradientBlock& contribution);
  // Of a contribution as it is, in FP32: what a worker that leaves had kept.
  std::shared_ptr<EncodeWork> AskParting(const GradientBlock& contribution) {
    return AskDense(contribution, *options_.seed_codec);
  }
  // What a work that was run came to; empty of a survey, and of one whose GPU failed.
  Payload Take(EncodeWork& work);
  // All of that at once, on this thread.
  Payload Encode(const GradientBlock& contribution);

  // The contribution was not counted: what can be kept of it goes with later ones, of the
  // tensors that have a memory.
  void TakeBack(const GradientBlock& contribution);

  // Encodes what TakeBack would encode, and keeps the bytes for it: of all blocks before the
  // first one is taken back, what is kept moves once.
  void EncodeUnsent(const GradientBlock& contribution);
  // What a worker that leaves has to send of a tensor; empty where nothing was kept. Its
  // memory has no use afterwards.
  std::span<const float> Settle(uint32_t tensor, const GradientUnits& units);

  // On the host, where it is moved if a GPU has it; kept_status() says whether all of it
  // has come.
  GradientMemory& memory(uint32_t tensor) { return kept_[tensor].OnHost(); }
  // Not OK once a GPU that failed had kept something.
  absl::Status kept_status() const;
  // Of compressed contributions.
  const CodecCost& cost() const { return cost_; }
  // The time of these for which the exchange's thread could do nothing else.
  absl::Duration cost_here() const { return cost_here_; }
  // So many bytes took so long on the wire.
  void Sent(size_t bytes, absl::Duration time) {
    chooser_.Sent({.bytes = bytes, .time = time});
  }
  // What was chosen, and why; empty when the job leaves no choice.
  const std::string& choice() const { return chooser_.Reason(); }
  // |residual| / |gradient| of late, of all tensors together; 0: not known.
  double residual_ratio() const;

  // The block's contribution was counted.
  void Forget(uint32_t block) { sent_.erase(block); }

 private:
  struct SentBlock {
    Payload payload = {};
    uint64_t epoch = 0;
  };
  // Of selectors that look at whole tensors.
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
  // So many of the gradient's elements, from number `first` on; until the next call.
  std::span<const float> Read(const GradientBlock& contribution, uint64_t first,
                              size_t elements);
  // How the GPU that has the gradient encodes it; nothing where it does not.
  std::optional<EncodeWork::OnDevice> OnDevice(const GradientBlock& contribution,
                                               const Transfer& transfer);
  void Keep(const GradientMemory::Squares& squares, uint32_t tensor);
  // Tells the chooser what the block took.
  void Measure(const EncodeWork& work, const Payload& payload);
  // The block's values where they lie, if they are lent; otherwise without an owner.
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
  std::vector<GradientMemory::Squares> squares_;  // by tensor, of late
  GradientMemory::Squares all_squares_;           // their sums
};

}  // namespace syncline
