// Chooses a codec for each tensor from the time that encoding, the wire and decoding
// take. It makes the decisions for `push_codec=auto`.
//
//   CodecPolicy policy(transfer.policy, elements);
//   policy.Sent({.bytes = 1 << 20, .ns = 9e6});
//   const CodecPolicy::Choice choice = policy.Choose(tensor, step);
//   const Transfer now = transfer.Using(choice.candidate);  // EncodeTile, then:
//   policy.Encoded(choice.candidate, {.elements = n, .bytes = bytes, .ns = ns});
//   Log(choice.reason);  // "onebit: wire 0.9 GB/s, 2.1 ms against 9.8 ms dense"
//
// A step of a tensor costs encode + bytes / wire + decode. A lossy candidate must save a
// share (`gain`) of the dense time before it is taken, and a change must save this share
// of the time before it. A candidate that no longer saves anything is dropped. Changes of
// a tensor are at least `hold_steps` apart. All candidates share one error feedback,
// since e = x - C(x) for any C, so changes lose nothing.
//
// The costs of candidates start with measurements by `syncline bench codec` (README.md),
// which the job's own measurements gradually replace. Unused candidates are tried again,
// one tensor at one step in `explore_steps`, as long as that costs little.
//
// This is a deterministic state machine without clock or random numbers: the same
// measurements and steps give the same choices. Thread safety: none.
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
  double ratio = 0.01;  // share of the values that top-k sends
  // Also choose by GradientStatistics: between top-k and one bit, and blocks if few are
  // nonzero.
  bool by_statistics = false;
  double gain = 0.2;
  uint64_t hold_steps = 50;
  uint64_t explore_steps = 100;

  bool operator==(const CodecPolicyOptions&) const = default;
};

// The cost of one element.
struct CandidateCost {
  double encode_ns = 0;
  double decode_ns = 0;
  double bytes = 0;
};

// Returns the costs before anything was measured. `ratio` is that of top-k.
std::array<CandidateCost, kCandidates> PriorCosts(double ratio);

enum class ReceiverPlace { kNetwork, kThisHost };

class CodecPolicy {
 public:
  // `elements` of each tensor of the job; 0 for tensors that other rules match.
  CodecPolicy(const CodecPolicyOptions& options, std::span<const uint64_t> elements);

  // ---- Measurements: each moves the estimate a quarter of the way to the new value.
  // ----

  struct Work {
    uint64_t elements = 0;
    uint64_t bytes = 0;
    double ns = 0;
  };
  // Also counts bytes, except for kBlocks, whose bytes depend on the tensor.
  void Encoded(Candidate candidate, const Work& work);
  void Decoded(Candidate candidate, const Work& work);  // by the receiver; needs no bytes
  void Sent(const Work& work);                          // bytes, ns of the wire
  void Moved(ReceiverPlace receiver) { receiver_ = receiver; }
  void Saw(uint32_t tensor, const GradientStatistics& statistics);

  // ---- Decisions ----

  struct Choice {
    Candidate candidate = Candidate::kDense;
    std::string reason = {};
  };
  // Returns the candidate for `tensor` at `step`: the same for all calls of one step.
  // REQUIRES: steps do not fall; the tensor has elements.
  const Choice& Choose(uint32_t tensor, uint64_t step);

  // Returns the time of a step of `tensor` with a candidate, as far as it is known.
  // REQUIRES: Sent was called.
  double CostNs(uint32_t tensor, Candidate candidate) const;

 private:
  struct Tensor {
    uint64_t elements = 0;
    Candidate settled = Candidate::kDense;  // except for steps that explore
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
