// How each tensor's gradient travels at a step: as the job says, or, for transfers that
// leave it open (push_codec=auto), as their CodecPolicy chooses from what encoding, the
// wire and decoding were measured to take.
//
// Thread safety: none; the push encoder owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/compression/policy/codec_policy.h"
#include "comm/compression/transfer.h"
#include "worker/client/exchange_options.h"

namespace syncline {

class CodecChooser {
 public:
  // `elements` of each tensor.
  CodecChooser(const ExchangeOptions& options, std::span<const uint64_t> elements);

  // REQUIRES: steps of a tensor do not fall; its transfer compresses at this one.
  const Transfer& TransferAt(uint32_t tensor, uint64_t step);
  bool Chooses(uint32_t tensor) const { return choosers_[tensor].policy != nullptr; }

  // ---- What was measured; ignored for tensors that nobody chooses for. ----
  struct Work {
    uint64_t values = 0;
    uint64_t bytes = 0;
    absl::Duration time = absl::ZeroDuration();
  };
  void Encoded(uint32_t tensor, const Work& work);
  void Decoded(uint32_t tensor, const Work& work);
  // Of all tensors: bytes and time on the wire.
  void Sent(const Work& work);
  // Whether the tensor's policy wants to look at gradients at this step, and its answer:
  // the first tile of one.
  bool WantsToSee(uint32_t tensor, uint64_t step) const;
  void Saw(uint32_t tensor, std::span<const float> tile);

  // The choice for the largest tensor that is chosen for, with its reason; empty when
  // none is.
  const std::string& Reason() const { return reason_; }

 private:
  struct Chooser {
    std::shared_ptr<CodecPolicy> policy = nullptr;  // null: as the job says
    uint64_t elements = 0;
    std::optional<Candidate> candidate = std::nullopt;
    Transfer transfer = {};
  };

  const std::vector<TensorTransfers> transfers_;
  std::vector<Chooser> choosers_;  // by tensor
  std::vector<std::shared_ptr<CodecPolicy>> policies_;
  uint32_t largest_ = 0;  // of the tensors that are chosen for
  std::string reason_;
};

}  // namespace syncline
