// A Transfer says how a tensor's values are sent in one direction: with which codec, with
// which substitute if that codec cannot encode them, and with which memory.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const Transfer transfer, ParseTransfer("topk:ratio=0.01"));
//   SYNCLINE_ASSIGN_OR_RETURN(const Transfer of_tensor,
//                             transfer.ForTensor(Transfer::ShapeOf("w", {1000, 300})));
//
// Pushes carry gradients. Published views carry weights if the codec is dense. Otherwise
// they carry deltas C(w - view), which both sides add to the view; so the view has the
// same bits on both. Nothing is lost in this direction, because the next delta refers to
// the same view (EF21; Richtarik et al. 2021, arXiv 2110.03294).
//
// Thread safety: these are values; codecs may be shared between threads.
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
  double decay = 1;       // kErrorFeedback: factor of what is kept
  double momentum = 0.9;  // kMomentumCorrection
  bool nesterov = false;

  bool operator==(const MemorySpec&) const = default;
};

// Which tensors are compressed. Small tensors and vectors (biases, norms) are not worth
// it: they are little of the traffic and matter much to the model.
struct CompressWhat {
  uint64_t min_elements = 16384;  // 64 KiB of FP32
  bool vectors = false;           // compress tensors of one dimension too
  uint64_t dense_steps = 0;       // the job's first steps are not compressed
};

struct Transfer {
  SharedCodec codec = nullptr;
  // The codec for pushed tiles with NaN or infinity, and for whole tensors that are not
  // compressed. Null if `codec` is dense itself.
  SharedCodec dense = nullptr;
  MemorySpec memory = {};
  CompressWhat what = {};
  // The servers take the sign of the mean of all workers (signSGD with majority vote;
  // Bernstein et al. 2018, arXiv 1810.05291), also for tensors that are sent densely.
  bool votes = false;
  // The servers divide each value by the weight of the workers that sent it (SparseLoCo;
  // Sarfi et al. 2025, arXiv 2508.15706). By default they divide by the weight of all, so
  // a value that one worker of W sends counts 1 / W. It does not apply to tensors that
  // are sent densely. If the codec sends coefficients (Codec::basis), so are the means.
  bool mean_of_senders = false;
  // What the memory keeps is the optimizer's momentum (DeMo; Peng et al. 2024, arXiv
  // 2411.19870), so the servers' optimizer must have none. MemoryKind::kMomentumCorrection
  // says the same.
  bool keeps_momentum = false;
  // Whether deltas in this codec bring a view nearer to the weights.
  bool follows = true;
  // The selector of `codec`, if it has one.
  std::optional<SelectorSpec> selector = std::nullopt;
  // Preset auto: the codecs, by Candidate, among which a CodecPolicy with the options
  // `policy` chooses. kBlocks is among them only if policy.by_statistics. `codec` is
  // top-k until Using is called.
  std::vector<SharedCodec> candidates = {};
  CodecPolicyOptions policy = {};

  bool compresses() const { return dense != nullptr; }
  bool CompressesAt(uint64_t step) const {
    return compresses() && step >= what.dense_steps;
  }
  // Returns how many values of a tensor of `elements` a step sends, if they are the
  // largest of the whole tensor. Encoders must then compute EncodeContext::threshold
  // first (sparse/tensor_histogram.h). Returns 0 if each tile is encoded on its own.
  uint64_t TensorTopCount(uint64_t elements, uint64_t step) const;
  // Whether the codec is chosen from step to step.
  bool chooses() const { return !candidates.empty(); }
  // Returns this transfer with one of its candidates as the codec. kDense keeps a
  // residual, as all candidates do. REQUIRES: chooses().
  Transfer Using(Candidate candidate) const;
  // Returns all codecs that a receiver of pushes must accept.
  CodecSet Accepted() const;
  struct Shape {
    uint64_t elements = 0;
    size_t dimensions = 0;
    uint64_t columns = 0;  // elements of one row: the product of all but the first extent
    std::string name = {};
  };
  static Shape ShapeOf(std::string_view name, std::span<const uint64_t> extents);
  // Returns the transfer of one tensor of a job. Fails with InvalidArgument if the codec
  // cannot encode such tensors and `what` does not exempt this one.
  absl::StatusOr<Transfer> ForTensor(const Shape& shape) const;
};

struct TensorTransfers {
  Transfer push = {};
  Transfer publish = {};
};

// Parses "NAME" or "NAME:option=value,option=value". Fails with InvalidArgument, which
// names the mistake and the nearest name or the allowed range.
absl::StatusOr<Transfer> ParseTransfer(std::string_view text);

// Returns the transfers of all tensors of a job, in order. Both texts may be rules by
// tensor name, "CODEC@PATTERN;...;CODEC" (transfer_rules.h). Errors name the setting and
// the rule. Without tensors it only checks the texts.
absl::StatusOr<std::vector<TensorTransfers>> ParseTransfers(
    std::string_view push, std::string_view publish,
    std::span<const Transfer::Shape> tensors);

// Returns one canonical text for a transfer or rules of transfers: options in order,
// without defaults. Returns an invalid text unchanged.
std::string CanonicalTransfer(std::string_view text);

// Name, meaning and options of a preset, for --help and the documentation.
struct TransferPreset {
  std::string_view name = {};
  std::string_view meaning = {};
  std::vector<OptionSpec> options = {};
};
std::vector<TransferPreset> TransferPresets();

}  // namespace syncline
