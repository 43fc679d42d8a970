#include "worker/client/codec_chooser.h"

#include <algorithm>

#include "comm/compression/policy/gradient_statistics.h"

namespace syncline {
namespace {

constexpr uint64_t kSeeEvery = 64;  // steps between two looks at a gradient

CodecPolicy::Work InNanoseconds(const CodecChooser::Work& work) {
  return {.elements = work.values,
          .bytes = work.bytes,
          .ns = absl::ToDoubleNanoseconds(work.time)};
}

}  // namespace

CodecChooser::CodecChooser(const ExchangeOptions& options,
                           std::span<const uint64_t> elements)
    : transfers_(options.transfers), choosers_(elements.size()) {
  std::vector<CodecPolicyOptions> kinds;
  for (size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& push = transfers_[i].push;
    if (push.chooses() && std::ranges::count(kinds, push.policy) == 0) {
      kinds.push_back(push.policy);
    }
  }
  for (const CodecPolicyOptions& kind : kinds) {
    std::vector<uint64_t> chosen(elements.size());
    for (size_t i = 0; i < transfers_.size(); ++i) {
      const Transfer& push = transfers_[i].push;
      if (push.chooses() && push.policy == kind) chosen[i] = elements[i];
    }
    auto policy = std::make_shared<CodecPolicy>(kind, chosen);
    policy->Moved(options.receiver);
    for (uint32_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] == 0) continue;
      choosers_[i] = {.policy = policy, .elements = chosen[i]};
      if (chosen[i] > choosers_[largest_].elements) largest_ = i;
    }
    policies_.push_back(std::move(policy));
  }
}

const Transfer& CodecChooser::TransferAt(uint32_t tensor, uint64_t step) {
  Chooser& chooser = choosers_[tensor];
  const Transfer& transfer = transfers_[tensor].push;
  if (chooser.policy == nullptr) return transfer;
  const CodecPolicy::Choice& choice = chooser.policy->Choose(tensor, step);
  if (tensor == largest_) reason_ = choice.reason;
  if (chooser.candidate != choice.candidate) {
    chooser.candidate = choice.candidate;
    chooser.transfer = transfer.Using(choice.candidate);
  }
  return chooser.transfer;
}

void CodecChooser::Encoded(uint32_t tensor, const Work& work) {
  const Chooser& chooser = choosers_[tensor];
  if (chooser.candidate) chooser.policy->Encoded(*chooser.candidate, InNanoseconds(work));
}

void CodecChooser::Decoded(uint32_t tensor, const Work& work) {
  const Chooser& chooser = choosers_[tensor];
  if (chooser.candidate) chooser.policy->Decoded(*chooser.candidate, InNanoseconds(work));
}

void CodecChooser::Sent(const Work& work) {
  for (const auto& policy : policies_) policy->Sent(InNanoseconds(work));
}

bool CodecChooser::WantsToSee(uint32_t tensor, uint64_t step) const {
  const Transfer& push = transfers_[tensor].push;
  return push.chooses() && push.policy.by_statistics && step % kSeeEvery == 0;
}

void CodecChooser::Saw(uint32_t tensor, std::span<const float> tile) {
  choosers_[tensor].policy->Saw(tensor, MeasureGradient(tile));
}

}  // namespace syncline
