// How a tensor's values travel one way: a codec, what takes its place where it cannot
// encode, and what the sender remembers.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const Transfer transfer, ParseTransfer("topk:ratio=0.01"));
//   SYNCLINE_ASSIGN_OR_RETURN(const Transfer of_tensor,
//                             transfer.ForTensor(Transfer::ShapeOf("w", {1000, 300})));
//
// Pushes carry gradients. Published views carry weights while the codec is dense; otherwise
// deltas: C(w - view), added to the view on both sides, which hence is the same bits
// there. Nothing is lost on this way, because the next delta is taken to the same view
// (EF21; Richtarik et al. 2021, arXiv 2110.03294).
//
// Thread safety: values; the codecs may be shared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/base/options.h"
#include "comm/codec/codec.h"
#include "comm/codec/frame.h"
#include "comm/codec/sparse/selector.h"
#include "comm/compression/policy/codec_policy.h"

namespace syncline {

using SharedCodec = std::shared_ptr<const Codec>;

enum class MemoryKind { kNone, kErrorFeedback, kMomentumCorrection };

struct MemorySpec {
  MemoryKind kind = MemoryKind::kNone;
  double decay = 1;       // of error feedback
  double momentum = 0.9;  // of momentum correction
  bool nesterov = false;

  bool operator==(const MemorySpec&) const = default;
};

// Small tensors and vectors (biases, norms) are not worth compressing: they are little of
// the traffic and much of the model's behaviour.
struct CompressWhat {
  uint64_t min_elements = 16384;  // 64 KiB of FP32
  bool vectors = false;           // tensors of one dimension too
  uint64_t dense_steps = 0;       // the job's first steps are not compressed
};

struct Transfer {
  SharedCodec codec = nullptr;
  // For pushed tiles with NaN or infinity, and for whole tensors that are not compressed.
  // Null when `codec` is dense itself.
  SharedCodec dense = nullptr;
  MemorySpec memory = {};
  CompressWhat what = {};
  // Servers make signs of the mean of all workers (signSGD with majority vote; Bernstein
  // et al. 2018, arXiv 1810.05291), also of tensors that travel densely.
  bool votes = false;
  // Servers divide each value by the weight of those who sent it, not of all: by default a
  // value that one worker of W sends counts 1 / W (SparseLoCo; Sarfi et al. 2025, arXiv
  // 2508.15706). Not for tensors that travel densely.
  bool mean_of_senders = false;
  // Deltas of it bring a view nearer to the weights.
  bool follows = true;
  // What `codec` selects by, if it selects.
  std::optional<SelectorSpec> selector = std::nullopt;
  // Of preset auto: the codecs that a CodecPolicy with the options `policy` chooses from,
  // by Candidate; kBlocks only if policy.by_statistics. `codec` is top-k until Using.
  std::vector<SharedCodec> candidates = {};
  CodecPolicyOptions policy = {};

  bool compresses() const { return dense != nullptr; }
  bool CompressesAt(uint64_t step) const {
    return compresses() && step >= what.dense_steps;
  }
  // How many values of a tensor of `elements` a step sends, if they are the largest of
  // the whole tensor: then who encodes finds EncodeContext::threshold first
  // (sparse/tensor_histogram.h). 0 if tiles look at themselves alone.
  uint64_t TensorTopCount(uint64_t elements, uint64_t step) const;
  // Whether the codec is chosen from step to step.
  bool chooses() const { return !candidates.empty(); }
  // This transfer with one of its candidates as the codec. kDense keeps what it loses, as
  // all of them do. REQUIRES: chooses().
  Transfer Using(Candidate candidate) const;
  // All that a receiver of pushes takes.
  CodecSet Accepted() const;
  struct Shape {
    uint64_t elements = 0;
    size_t dimensions = 0;
    uint64_t columns = 0;  // elements of one row: the product of all but the first extent
    std::string name = {};
  };
  static Shape ShapeOf(std::string_view name, std::span<const uint64_t> extents);
  // The transfer of one tensor of a job. InvalidArgument: the codec cannot encode such
  // tensors, and the policy above does not exempt this one.
  absl::StatusOr<Transfer> ForTensor(const Shape& shape) const;
};

struct TensorTransfers {
  Transfer push = {};
  Transfer publish = {};
};

// "NAME" or "NAME:option=value,option=value". InvalidArgument names what is wrong, the
// nearest name or the allowed range.
absl::StatusOr<Transfer> ParseTransfer(std::string_view text);

// Those of all tensors of a job, in order. Both texts may be rules by the tensors' names,
// "CODEC@PATTERN;...;CODEC" (transfer_rules.h); errors name the setting and the rule.
// Without tensors only the texts are checked.
absl::StatusOr<std::vector<TensorTransfers>> ParseTransfers(
    std::string_view push, std::string_view publish,
    std::span<const Transfer::Shape> tensors);

// The same text for the same transfer, or rules of transfers: options in order, without
// those that are defaults. Texts that nothing accepts stay as they are.
std::string CanonicalTransfer(std::string_view text);

// What the names are and what they take, for --help and the documentation.
struct TransferPreset {
  std::string_view name = {};
  std::string_view meaning = {};
  std::vector<OptionSpec> options = {};
};
std::vector<TransferPreset> TransferPresets();

}  // namespace syncline
