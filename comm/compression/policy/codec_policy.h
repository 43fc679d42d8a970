// Chooses a codec for each tensor by what encoding, the wire and decoding take: the
// decisions behind `push_codec=auto`.
//
//   CodecPolicy policy(transfer.policy, elements);
//   policy.Sent({.bytes = 1 << 20, .ns = 9e6});
//   const CodecPolicy::Choice choice = policy.Choose(tensor, step);
//   const Transfer now = transfer.Using(choice.candidate);  // EncodeTile, then:
//   policy.Encoded(choice.candidate, {.elements = n, .bytes = bytes, .ns = ns});
//   Log(choice.reason);  // "onebit: wire 0.9 GB/s, 2.1 ms against 9.8 ms dense"
//
// A step of a tensor costs encode + bytes / wire + decode. Candidates that lose something
// must save a share (`gain`) of the dense time before they are taken, and a change must
// save it of the time before; one that no longer saves anything is left. Between two
// changes of a tensor lie at least `hold_steps`. All candidates share one error feedback,
// for e = x - C(x) whatever C is, so changes lose nothing.
//
// The rates of candidates begin with figures of `syncline bench codec` (README.md), and
// measurements replace them by and by. Candidates that are not used are tried again, one
// tensor and one step in `explore_steps`, as long as that costs little.
//
// A deterministic state machine: the same measurements and steps give the same choices.
// No clock, no random numbers. Thread safety: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/compression/policy/gradient_statistics.h"

namespace syncline {

// The order of Transfer::candidates.
enum class Candidate : uint8_t { kDense, kInt8, kOneBit, kTopK, kBlocks };
inline constexpr size_t kCandidates = 5;

std::string_view CandidateName(Candidate candidate);

struct CodecPolicyOptions {
  double ratio = 0.01;  // of top-k
  // Choose by GradientStatistics too: top-k or one bit, and blocks where they are few.
  bool by_statistics = false;
  double gain = 0.2;
  uint64_t hold_steps = 50;
  uint64_t explore_steps = 100;

  bool operator==(const CodecPolicyOptions&) const = default;
};

// What one element costs.
struct CandidateCost {
  double encode_ns = 0;
  double decode_ns = 0;
  double bytes = 0;
};

// Before anything was measured; `ratio` is that of top-k.
std::array<CandidateCost, kCandidates> PriorCosts(double ratio);

enum class ReceiverPlace { kNetwork, kThisHost };

class CodecPolicy {
 public:
  // `elements` of each tensor of the job; 0 for those that other rules take.
  CodecPolicy(const CodecPolicyOptions& options, std::span<const uint64_t> elements);

  // ---- Measurements: each moves the figure a quarter of the way. ----

  struct Work {
    uint64_t elements = 0;
    uint64_t bytes = 0;
    double ns = 0;
  };
  // Bytes count as well, but for kBlocks, where they are the tensor's.
  void Encoded(Candidate candidate, const Work& work);
  void Decoded(Candidate candidate, const Work& work);  // by the receiver; elements, ns
  void Sent(const Work& work);                          // bytes, ns of the wire
  void Moved(ReceiverPlace receiver) { receiver_ = receiver; }
  void Saw(uint32_t tensor, const GradientStatistics& statistics);

  // ---- Decisions ----

  struct Choice {
    Candidate candidate = Candidate::kDense;
    std::string reason = {};
  };
  // What `tensor` travels as at `step`: the same for all calls of one step. REQUIRES:
  // steps do not fall; elements of the tensor are not 0.
  const Choice& Choose(uint32_t tensor, uint64_t step);

  // What a step of `tensor` takes with a candidate, as far as is known. REQUIRES: Sent.
  double CostNs(uint32_t tensor, Candidate candidate) const;

 private:
  struct Tensor {
    uint64_t elements = 0;
    Candidate settled = Candidate::kDense;  // but for steps that explore
    std::optional<uint64_t> changed_at = std::nullopt;
    std::optional<uint64_t> chosen_at = std::nullopt;
    Choice choice = {};
    std::optional<GradientStatistics> statistics = std::nullopt;
  };

  double ElementNs(const Tensor& tensor, Candidate candidate) const;
  bool IsAllowed(const Tensor& tensor, Candidate candidate) const;
  bool Pays(const Tensor& tensor, Candidate candidate) const;
  Candidate Best(const Tensor& tensor) const;
  Choice Settle(Tensor& tensor, uint64_t step) const;
  std::optional<Candidate> Explored(uint32_t number, uint64_t step) const;
  std::string Explain(const Tensor& tensor) const;
  std::string ExplainStatistics(const Tensor& tensor) const;

  const CodecPolicyOptions options_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> explorers_;  // tensors with elements
  double all_elements_ = 0;
  std::array<CandidateCost, kCandidates> costs_;
  std::optional<double> wire_ns_per_byte_;
  ReceiverPlace receiver_ = ReceiverPlace::kNetwork;
};

}  // namespace syncline
