// Chooses the codec of each tensor's gradient at each step: the job's, or with
// push_codec=auto the one that the tensor's CodecPolicy chooses from the measured cost of
// encoding, sending and decoding.
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
  // `elements`: number of elements of each tensor.
  CodecChooser(const ExchangeOptions& options, std::span<const uint64_t> elements);

  // REQUIRES: the steps of a tensor do not decrease; its transfer compresses at this
  // step.
  const Transfer& TransferAt(uint32_t tensor, uint64_t step);
  bool Chooses(uint32_t tensor) const { return choosers_[tensor].policy != nullptr; }

  // ---- Measurements. Ignored for tensors whose codec the job names. ----
  struct Work {
    uint64_t values = 0;
    uint64_t bytes = 0;
    absl::Duration time = absl::ZeroDuration();
  };
  void Encoded(uint32_t tensor, const Work& work);
  void Decoded(uint32_t tensor, const Work& work);
  // Bytes and time on the wire, of all tensors together.
  void Sent(const Work& work);
  // Whether the tensor's policy wants to see a gradient at this step. Saw then passes the
  // first tile of one.
  bool WantsToSee(uint32_t tensor, uint64_t step) const;
  void Saw(uint32_t tensor, std::span<const float> tile);

  // The choice for the largest tensor with push_codec=auto, and its reason. Empty without
  // such a tensor.
  const std::string& Reason() const { return reason_; }

 private:
  struct Chooser {
    std::shared_ptr<CodecPolicy> policy = nullptr;  // null: the job's codec
    uint64_t elements = 0;
    std::optional<Candidate> candidate = std::nullopt;
    Transfer transfer = {};
  };

  const std::vector<TensorTransfers> transfers_;
  std::vector<Chooser> choosers_;  // by tensor
  std::vector<std::shared_ptr<CodecPolicy>> policies_;
  uint32_t largest_ = 0;  // the largest tensor with a policy
  std::string reason_;
};

}  // namespace syncline
