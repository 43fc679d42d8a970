#include "comm/compression/policy/codec_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

constexpr Candidate kAll[kCandidates] = {Candidate::kDense, Candidate::kInt8,
                                         Candidate::kOneBit, Candidate::kTopK,
                                         Candidate::kBlocks};

// A single measurement may be ten times off because of a page fault or another process.
constexpr double kShareOfNew = 0.25;
// Trying a candidate may cost this share of the time between two tries.
constexpr double kExploreShare = 0.01;
// Lossless blocks pay below this share of nonzero blocks.
constexpr double kFewBlocks = 0.25;
constexpr double kHeavyTailed = 0.5;

size_t Index(Candidate candidate) { return static_cast<size_t>(candidate); }

void Follow(double measured, double& figure) {
  figure += kShareOfNew * (measured - figure);
}

std::string Rate(double ns_per_byte) {
  const double gbs = 1 / ns_per_byte;
  return gbs >= 0.1 ? absl::StrFormat("%.3g GB/s", gbs)
                    : absl::StrFormat("%.3g MB/s", 1000 * gbs);
}

std::string Ms(double ns) { return absl::StrFormat("%.3g ms", ns / 1e6); }

}  // namespace

std::string_view CandidateName(Candidate candidate) {
  switch (candidate) {
    case Candidate::kDense:
      return "dense";
    case Candidate::kInt8:
      return "int8";
    case Candidate::kOneBit:
      return "onebit";
    case Candidate::kTopK:
      return "topk";
    case Candidate::kBlocks:
      return "blocks";
  }
  return "unknown";
}

std::array<CandidateCost, kCandidates> PriorCosts(double ratio) {
  std::array<CandidateCost, kCandidates> costs;
  costs[Index(Candidate::kDense)] = {.encode_ns = 0.45, .decode_ns = 0.25, .bytes = 2};
  costs[Index(Candidate::kInt8)] = {.encode_ns = 0.6, .decode_ns = 0.27, .bytes = 1.006};
  costs[Index(Candidate::kOneBit)] = {.encode_ns = 0.5, .decode_ns = 0.2, .bytes = 0.128};
  // Positions cost about their entropy, values one byte each.
  const double bytes_of_value = 1 + (std::log2(1 / ratio) + 1.5) / 8;
  costs[Index(Candidate::kTopK)] = {.encode_ns = 0.8 + 10 * ratio,
                                    .decode_ns = 0.1 + 5 * ratio,
                                    .bytes = ratio * bytes_of_value + 0.001};
  // The times are for a tenth of the blocks, the bytes for all of them.
  costs[Index(Candidate::kBlocks)] = {.encode_ns = 0.7, .decode_ns = 0.2, .bytes = 4};
  return costs;
}

CodecPolicy::CodecPolicy(const CodecPolicyOptions& options,
                         std::span<const uint64_t> elements)
    : options_(options), tensors_(elements.size()), costs_(PriorCosts(options.ratio)) {
  SYNCLINE_CHECK(options.explore_steps > 0);
  for (uint32_t i = 0; i < elements.size(); ++i) {
    tensors_[i].elements = elements[i];
    all_elements_ += static_cast<double>(elements[i]);
    if (elements[i] > 0) explorers_.push_back(i);
  }
}

void CodecPolicy::Encoded(Candidate candidate, const Work& work) {
  if (work.elements == 0) return;
  CandidateCost& cost = costs_[Index(candidate)];
  const auto elements = static_cast<double>(work.elements);
  Follow(work.ns / elements, cost.encode_ns);
  if (candidate == Candidate::kBlocks) return;
  Follow(static_cast<double>(work.bytes) / elements, cost.bytes);
}

void CodecPolicy::Decoded(Candidate candidate, const Work& work) {
  if (work.elements == 0) return;
  Follow(work.ns / static_cast<double>(work.elements),
         costs_[Index(candidate)].decode_ns);
}

void CodecPolicy::Sent(const Work& work) {
  if (work.bytes == 0) return;
  const double measured = work.ns / static_cast<double>(work.bytes);
  if (!wire_ns_per_byte_) wire_ns_per_byte_ = measured;
  Follow(measured, *wire_ns_per_byte_);
}

void CodecPolicy::Saw(uint32_t tensor, const GradientStatistics& statistics) {
  std::optional<GradientStatistics>& known = tensors_[tensor].statistics;
  if (!known) known = statistics;
  Follow(statistics.nonzero_blocks, known->nonzero_blocks);
  Follow(statistics.top_energy, known->top_energy);
}

double CodecPolicy::ElementNs(const Tensor& tensor, Candidate candidate) const {
  CandidateCost cost = costs_[Index(candidate)];
  if (candidate == Candidate::kBlocks && tensor.statistics) {
    cost.bytes *= tensor.statistics->nonzero_blocks;
  }
  return cost.encode_ns + cost.bytes * *wire_ns_per_byte_ + cost.decode_ns;
}

double CodecPolicy::CostNs(uint32_t tensor, Candidate candidate) const {
  SYNCLINE_CHECK(wire_ns_per_byte_.has_value());
  const Tensor& state = tensors_[tensor];
  return static_cast<double>(state.elements) * ElementNs(state, candidate);
}

// Decides by the gradient's statistics, not by the cost.
bool CodecPolicy::IsAllowed(const Tensor& tensor, Candidate candidate) const {
  if (candidate == Candidate::kDense) return true;
  if (!options_.by_statistics || !tensor.statistics) {
    return candidate != Candidate::kBlocks;
  }
  const bool has_few_blocks = tensor.statistics->nonzero_blocks < kFewBlocks;
  const bool is_heavy_tailed = tensor.statistics->top_energy > kHeavyTailed;
  switch (candidate) {
    case Candidate::kDense:
      return true;
    case Candidate::kBlocks:
      return has_few_blocks;
    case Candidate::kInt8:
      return !has_few_blocks;
    case Candidate::kTopK:
      return !has_few_blocks && is_heavy_tailed;
    case Candidate::kOneBit:
      return !has_few_blocks && !is_heavy_tailed;
  }
  return false;
}

// Whether a lossy candidate saves enough.
bool CodecPolicy::Pays(const Tensor& tensor, Candidate candidate) const {
  if (candidate == Candidate::kDense) return true;
  const double most = candidate == tensor.settled ? 1 : 1 - options_.gain;
  return ElementNs(tensor, candidate) < most * ElementNs(tensor, Candidate::kDense);
}

Candidate CodecPolicy::Best(const Tensor& tensor) const {
  Candidate best = Candidate::kDense;
  for (const Candidate candidate : kAll) {
    if (!IsAllowed(tensor, candidate) || !Pays(tensor, candidate)) continue;
    if (ElementNs(tensor, candidate) < ElementNs(tensor, best)) best = candidate;
  }
  return best;
}

std::string CodecPolicy::ExplainStatistics(const Tensor& tensor) const {
  if (!options_.by_statistics || !tensor.statistics) return {};
  const GradientStatistics& statistics = *tensor.statistics;
  if (statistics.nonzero_blocks < kFewBlocks) {
    return absl::StrFormat("; %.2g %% of the blocks are not zero",
                           100 * statistics.nonzero_blocks);
  }
  return absl::StrFormat("; the largest 1 %% hold %.2g %% of the square",
                         100 * statistics.top_energy);
}

std::string CodecPolicy::Explain(const Tensor& tensor) const {
  const auto ms = [&](Candidate candidate) {
    return Ms(static_cast<double>(tensor.elements) * ElementNs(tensor, candidate));
  };
  std::string reason = absl::StrCat(std::string(CandidateName(tensor.settled)), ": wire ",
                                    Rate(*wire_ns_per_byte_), ", ", ms(tensor.settled));
  if (tensor.settled != Candidate::kDense) {
    return absl::StrCat(reason, " against ", ms(Candidate::kDense), " dense",
                        ExplainStatistics(tensor));
  }
  Candidate next = Candidate::kDense;  // the best of the others
  for (const Candidate candidate : kAll) {
    if (candidate == Candidate::kDense || !IsAllowed(tensor, candidate)) continue;
    if (next == Candidate::kDense ||
        ElementNs(tensor, candidate) < ElementNs(tensor, next)) {
      next = candidate;
    }
  }
  return absl::StrCat(reason, " against ", ms(next), " ",
                      std::string(CandidateName(next)), ExplainStatistics(tensor));
}

CodecPolicy::Choice CodecPolicy::Settle(Tensor& tensor, uint64_t step) const {
  const Candidate best = Best(tensor);
  const Candidate settled = tensor.settled;
  const bool stays =
      IsAllowed(tensor, settled) && Pays(tensor, settled) &&
      ElementNs(tensor, best) >= (1 - options_.gain) * ElementNs(tensor, settled);
  const bool waits = tensor.changed_at && step - *tensor.changed_at < options_.hold_steps;
  if (best != settled && !stays && waits) {
    return {.candidate = settled,
            .reason = absl::StrCat(Explain(tensor), "; waits for step ",
                                   *tensor.changed_at + options_.hold_steps,
                                   " to become ", std::string(CandidateName(best)))};
  }
  if (best != settled && !stays) {
    tensor.settled = best;
    tensor.changed_at = step;
  }
  return {.candidate = tensor.settled, .reason = Explain(tensor)};
}

// Tensors take turns; during the turn of a tensor each candidate has its turn.
std::optional<Candidate> CodecPolicy::Explored(uint32_t number, uint64_t step) const {
  if (step % options_.explore_steps != 0) return std::nullopt;
  const uint64_t turn = step / options_.explore_steps;
  const Candidate candidate = kAll[turn % kCandidates];
  if (explorers_[turn / kCandidates % explorers_.size()] != number) return std::nullopt;
  const Tensor& tensor = tensors_[number];
  if (candidate == tensor.settled || !IsAllowed(tensor, candidate)) return std::nullopt;
  const double now = ElementNs(tensor, tensor.settled);
  const double more = ElementNs(tensor, candidate) - now;
  const double budget =
      kExploreShare * static_cast<double>(options_.explore_steps) * all_elements_ * now;
  if (more * static_cast<double>(tensor.elements) > budget) return std::nullopt;
  return candidate;
}

const CodecPolicy::Choice& CodecPolicy::Choose(uint32_t tensor, uint64_t step) {
  Tensor& state = tensors_[tensor];
  SYNCLINE_CHECK(state.elements > 0);
  if (state.chosen_at == step) return state.choice;
  state.chosen_at = step;
  if (receiver_ == ReceiverPlace::kThisHost) {
    state.settled = Candidate::kDense;
    state.choice = {.reason = "dense: the receiver is on this host"};
  } else if (!wire_ns_per_byte_) {
    state.choice = {.reason = "dense: the wire was not measured yet"};
  } else {
    state.choice = Settle(state, step);
    if (const std::optional<Candidate> explored = Explored(tensor, step)) {
      state.choice = {
          .candidate = *explored,
          .reason = absl::StrCat(std::string(CandidateName(*explored)),
                                 ": tried for a step; ", state.choice.reason)};
    }
  }
  return state.choice;
}

}  // namespace syncline
