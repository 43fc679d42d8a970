#include "comm/compression/transfer_presets.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "comm/base/status.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/codec/dct/dct.h"
#include "comm/codec/fp16/fp16.h"
#include "comm/codec/fp32/fp32.h"
#include "comm/codec/integer/integer.h"
#include "comm/codec/lowrank/lowrank.h"
#include "comm/codec/natural/natural.h"
#include "comm/codec/rotated/rotated.h"
#include "comm/codec/sign/sign.h"
#include "comm/codec/sparse/sparse.h"
#include "comm/codec/twobit/twobit.h"

namespace syncline {
namespace {

const OptionSpec kBlock = {.name = "block_log2",
                           .standard = 12,
                           .least = 8,
                           .most = 16,
                           .kind = OptionKind::kWhole,
                           .meaning = "2^n values share a scale"};

const OptionSpec kRotate = {.name = "rotate",
                            .kind = OptionKind::kFlag,
                            .meaning = "1: a Hadamard rotation first, for heavy tails"};

// The options that all lossy presets have.
const OptionSpec kCommon[] = {
    {.name = "decay", .standard = 1, .meaning = "of what error feedback keeps"},
    {.name = "momentum",
     .standard = 0.9,
     .bound = Bound::kExcluded,
     .meaning = "of memory=dgc"},
    {.name = "nesterov", .kind = OptionKind::kFlag, .meaning = "of memory=dgc"},
    {.name = "min_elements",
     .standard = 16384,
     .most = 1e15,
     .kind = OptionKind::kWhole,
     .meaning = "smaller tensors travel as bf16"},
    {.name = "dense_steps",
     .most = 1e15,
     .kind = OptionKind::kWhole,
     .meaning = "the first steps travel densely: a warm-up"},
    {.name = "vectors",
     .kind = OptionKind::kFlag,
     .meaning = "1: tensors of one dimension are compressed too"}};

std::vector<CodecPreset> DensePresets() {
  return {{.name = "fp32",
           .meaning = "4 bytes, as it is",
           .make = [](const PresetParts&) -> absl::StatusOr<SharedCodec> {
             return MakeFp32Codec();
           }},
          {.name = "bf16",
           .meaning = "2 bytes, rounded to nearest even",
           .make = [](const PresetParts&) -> absl::StatusOr<SharedCodec> {
             return MakeBf16Codec();
           }},
          {.name = "fp16",
           .meaning = "2 bytes, for gradients of a scaled loss",
           .make = [](const PresetParts&) -> absl::StatusOr<SharedCodec> {
             return MakeFp16Codec();
           }},
          {.name = "bf16-stochastic",
           .meaning = "2 bytes, rounded at random",
           .make = [](const PresetParts&) -> absl::StatusOr<SharedCodec> {
             return MakeStochasticBf16Codec();
           }}};
}

CodecPreset Integers(std::string_view name, std::string_view meaning,
                     const IntegerOptions& standard) {
  CodecPreset preset = {
      .name = name,
      .meaning = meaning,
      .options = {kBlock},
      .kind = CodecPreset::Kind::kQuantizer,
      .memory = standard.rounding == IntegerRounding::kNearest
                    ? MemoryKind::kErrorFeedback
                    : MemoryKind::kNone,
      .make = [standard](const PresetParts& parts) -> absl::StatusOr<SharedCodec> {
        IntegerOptions options = standard;
        options.block_log2 = static_cast<uint32_t>(parts.Number("block_log2"));
        if (options.clip > 0) {
          options.clip = static_cast<float>(parts.Number("clip"));
        }
        if (options.clip != 0 && options.clip < 1) {
          return absl::InvalidArgumentError(
              "option 'clip' must be 0 or at least 1: less would cut "
              "nearly all values");
        }
        return MakeIntegerCodec(options);
      }};
  preset.options.front().standard = standard.block_log2;
  if (standard.clip > 0) {
    preset.options.push_back({.name = "clip",
                              .standard = standard.clip,
                              .most = 256,
                              .meaning = "values are clipped to this multiple of a "
                                         "block's root mean square; 0: none"});
  }
  return preset;
}

void AddRotation(CodecPreset& preset) {
  preset.options.push_back(kRotate);
  preset.make =
      [plain = preset.make](const PresetParts& parts) -> absl::StatusOr<SharedCodec> {
    SYNCLINE_ASSIGN_OR_RETURN(SharedCodec codec, plain(parts));
    if (parts.Number("rotate") == 0) return codec;
    return SharedCodec(MakeRotatedCodec(std::move(codec)));
  };
}

std::vector<CodecPreset> QuantizerPresets() {
  using enum CodecPreset::Kind;
  constexpr auto kStochastic = IntegerRounding::kStochastic;
  std::vector<CodecPreset> presets = {
      {.name = "onebit",
       .meaning = "signs, and the mean magnitude of each block",
       .options = {kBlock},
       .kind = kQuantizer,
       .memory = MemoryKind::kErrorFeedback,
       .make = [](const PresetParts& parts) -> absl::StatusOr<SharedCodec> {
         return MakeSignCodec(
             {.block_log2 = static_cast<uint32_t>(parts.Number("block_log2"))});
       }},
      {.name = "signsgd",
       .meaning = "signs alone, and servers take the majority",
       .kind = kQuantizer,
       .votes = true,
       .follows = false,
       .make = [](const PresetParts&) -> absl::StatusOr<SharedCodec> {
         return MakeSignCodec({.block_log2 = 16, .scale = SignScale::kOne});
       }},
      {.name = "natural",
       .meaning = "1 byte, rounded at random to a power of two",
       .kind = kQuantizer,
       .make = [](const PresetParts&) -> absl::StatusOr<SharedCodec> {
         return MakeNaturalCodec();
       }}};
  presets.push_back(
      {.name = "twobit",
       .meaning = "a sign and large or small, and the means of these four bins",
       .options = {kBlock},
       .kind = kQuantizer,
       .memory = MemoryKind::kErrorFeedback,
       .make = [](const PresetParts& parts) -> absl::StatusOr<SharedCodec> {
         return MakeTwoBitCodec(
             {.block_log2 = static_cast<uint32_t>(parts.Number("block_log2"))});
       }});
  const auto add = [&](std::string_view name, std::string_view meaning,
                       const IntegerOptions& options) {
    presets.push_back(Integers(name, meaning, options));
  };
  add("int8", "8-bit integers, the largest of a block is 127", {.bits = 8});
  add("int4", "4-bit integers, the largest of a block is 7", {.bits = 4});
  add("int2", "-1, 0, 1 times the largest of a block", {.bits = 2});
  add("int8-stochastic", "int8, rounded at random; also called dithering",
      {.bits = 8, .rounding = kStochastic});
  add("int4-stochastic", "int4, rounded at random", {.bits = 4, .rounding = kStochastic});
  add("terngrad", "int2 of clipped values, rounded at random",
      {.bits = 2, .rounding = kStochastic, .clip = 2.5f});
  add("qsgd", "8-bit integers of the block's norm, rounded at random",
      {.bits = 8, .rounding = kStochastic, .range = IntegerRange::kL2});
  for (CodecPreset& preset : presets) {
    // A sum of rotated signs is not a vote.
    if (preset.name != "signsgd") AddRotation(preset);
  }
  return presets;
}

CodecPreset PowerSgdPreset() {
  const LowRankOptions standard;
  return {.name = "powersgd",
          .meaning = "two thin factors of each tile's matrix",
          .options = {{.name = "rank",
                       .standard = static_cast<double>(standard.rank),
                       .least = 1,
                       .most = kMaxRank,
                       .kind = OptionKind::kWhole,
                       .meaning = "columns of each factor"},
                      {.name = "fp32",
                       .kind = OptionKind::kFlag,
                       .meaning = "1: factors travel as fp32, not as bf16"}},
          .kind = CodecPreset::Kind::kFactors,
          .memory = MemoryKind::kErrorFeedback,
          .make = [](const PresetParts& parts) -> absl::StatusOr<SharedCodec> {
            return MakeLowRankCodec({.rank = static_cast<uint32_t>(parts.Number("rank")),
                                     .factors = parts.Number("fp32") != 0
                                                    ? FactorType::kFp32
                                                    : FactorType::kBf16});
          }};
}

// The options of a selector that sends a share of the values.
std::vector<OptionSpec> RatioOptions(double standard) {
  const RatioWarmup warmup;
  return {{.name = "ratio",
           .standard = standard,
           .least = 1e-6,
           .most = 1,
           .meaning = "share of the values that is sent"},
          {.name = "warmup_steps",
           .most = 1e15,
           .kind = OptionKind::kWhole,
           .meaning = "steps over which the ratio falls to its value"},
          {.name = "warmup_ratio",
           .standard = warmup.ratio,
           .least = 1e-6,
           .most = 1,
           .meaning = "the ratio at the start of the warm-up"}};
}

std::vector<OptionSpec> SelectorOptions(const SelectorSpec& standard) {
  std::vector<OptionSpec> options = RatioOptions(standard.ratio);
  switch (standard.kind) {
    case SelectorKind::kTopK:
      options.push_back({.name = "chunk_log2",
                         .standard = static_cast<double>(standard.chunk_log2),
                         .least = kMinChunkLog2,
                         .most = kMaxChunkLog2,
                         .kind = OptionKind::kWhole,
                         .meaning = "that share of each 2^n values; 16: of the tile"});
      options.push_back(
          {.name = "mean_of_senders",
           .kind = OptionKind::kFlag,
           .meaning = "1: a value's mean is over the workers that sent it"});
      break;
    case SelectorKind::kTopKSampled:
    case SelectorKind::kProportional:
      break;
    case SelectorKind::kTopKReuse:
      options.push_back({.name = "period",
                         .standard = static_cast<double>(standard.period),
                         .least = 1,
                         .most = 1e6,
                         .kind = OptionKind::kWhole,
                         .meaning = "steps between exact thresholds"});
      break;
    case SelectorKind::kRandomK:
      options.push_back(
          {.name = "unbiased",
           .kind = OptionKind::kFlag,
           .meaning = "1: sent values are divided by the ratio; for memory=none"});
      break;
    case SelectorKind::kThreshold:
      return {{.name = "threshold",
               .standard = standard.threshold,
               .most = 1e30,
               .meaning = "values above it are sent"}};
    case SelectorKind::kBlocks:
      return {};
  }
  return options;
}

CodecPreset Selects(std::string_view name, std::string_view meaning,
                    const SelectorSpec& standard) {
  const bool loses_nothing = standard.kind == SelectorKind::kBlocks ||
                             standard.kind == SelectorKind::kProportional;
  return {.name = name,
          .meaning = meaning,
          .options = SelectorOptions(standard),
          .kind = CodecPreset::Kind::kSelector,
          .selector = standard,
          .memory = loses_nothing ? MemoryKind::kNone : MemoryKind::kErrorFeedback,
          .make = [name](const PresetParts& parts) -> absl::StatusOr<SharedCodec> {
            SYNCLINE_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec,
                                      MakeSparseCodec({.name = std::string(name),
                                                       .selector = parts.selector,
                                                       .values = parts.values}));
            return SharedCodec(std::move(codec));
          }};
}

std::vector<CodecPreset> SelectorPresets() {
  std::vector<CodecPreset> presets = {
      Selects("topk", "the largest values of each tile", {.kind = SelectorKind::kTopK}),
      Selects("topk-sampled", "those above a threshold from 1 % of the values",
              {.kind = SelectorKind::kTopKSampled}),
      Selects("topk-reuse", "those above the threshold of an earlier step",
              {.kind = SelectorKind::kTopKReuse}),
      Selects("randomk", "values at random; only a seed says which",
              {.kind = SelectorKind::kRandomK}),
      Selects("proportional",
              "large values more often, small ones enlarged: right in the mean",
              {.kind = SelectorKind::kProportional}),
      Selects("threshold", "values above a fixed threshold",
              {.kind = SelectorKind::kThreshold, .threshold = 0.01f}),
      Selects("blocks", "all blocks of 256 values that are not zero",
              {.kind = SelectorKind::kBlocks}),
      Selects("dgc", "topk with momentum on the worker",
              {.kind = SelectorKind::kTopK, .ratio = 0.001})};
  presets.back().memory = MemoryKind::kMomentumCorrection;
  return presets;
}

OptionSpec& OptionOf(CodecPreset& preset, std::string_view name) {
  return *std::ranges::find(preset.options, name, &OptionSpec::name);
}

// The codec of SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706), for pushes of local SGD.
// Its error feedback replaces the outer optimizer's momentum. It sends 64 of 4,096
// values.
CodecPreset SparseLoCoPreset() {
  CodecPreset preset = Selects(
      "sparseloco", "topk of chunks in 2 bits, averaged over the workers that sent it",
      {.kind = SelectorKind::kTopK, .ratio = 1.0 / 64, .chunk_log2 = 12});
  preset.values = "twobit";
  OptionOf(preset, "mean_of_senders").standard = 1;
  return preset;
}

// Changes defaults of the options that all lossy presets have: the paper's decay, and
// tensors of at least one chunk.
void SetSparseLoCoStandards(CodecPreset& preset) {
  OptionOf(preset, "decay").standard = 0.95;
  OptionOf(preset, "min_elements").standard = 4096;
}

// The codec of DeMo (Peng et al. 2024, arXiv 2411.19870): the momentum stays on the
// workers, which send its largest coefficients, 32 of each 64 x 64.
CodecPreset DeMoPreset() {
  CodecPreset preset = Selects(
      "demo", "the largest cosine coefficients of the momentum, which is on the worker",
      {.kind = SelectorKind::kTopK, .ratio = 1.0 / 128, .chunk_log2 = 12});
  preset.values = "bf16";
  preset.keeps_momentum = true;
  OptionOf(preset, "mean_of_senders").standard = 1;
  preset.make =
      [top = preset.make](const PresetParts& parts) -> absl::StatusOr<SharedCodec> {
    DctOptions options = {.name = "demo"};
    SYNCLINE_ASSIGN_OR_RETURN(options.inner, top(parts));
    return SharedCodec(MakeDctCodec(std::move(options)));
  };
  return preset;
}

// Changes defaults of the options that all lossy presets have: the paper's momentum,
// which is the decay of what is kept, and tensors of at least one chunk.
void SetDeMoStandards(CodecPreset& preset) {
  OptionSpec& decay = OptionOf(preset, "decay");
  decay.standard = 0.999;
  decay.meaning = "of the momentum that a worker keeps";
  OptionOf(preset, "min_elements").standard = 4096;
  std::erase_if(preset.options, [](const OptionSpec& option) {
    return option.name == "momentum" || option.name == "nesterov";
  });
}

// It is made of its candidates (transfer_candidates.h).
CodecPreset AutoPreset() {
  return {.name = "auto",
          .meaning = "bf16, int8, onebit or topk: what is fastest, as measured",
          .options = {{.name = "ratio",
                       .standard = 0.01,
                       .least = 1e-6,
                       .most = 1,
                       .meaning = "share of the values that topk sends"},
                      {.name = "statistics",
                       .kind = OptionKind::kFlag,
                       .meaning = "1: what the gradient looks like decides too"}},
          .kind = CodecPreset::Kind::kAuto,
          .memory = MemoryKind::kErrorFeedback};
}

}  // namespace

SelectorSpec SelectorOf(const CodecPreset& preset, const PresetParts& parts) {
  const auto number = [&](std::string_view option, double otherwise) {
    return parts.NumberOr(option, otherwise);
  };
  SelectorSpec spec = preset.selector;
  spec.ratio = number("ratio", spec.ratio);
  spec.warmup = {.steps = static_cast<uint64_t>(number("warmup_steps", 0)),
                 .ratio = number("warmup_ratio", spec.warmup.ratio),
                 // The dense steps come first.
                 .first_step = static_cast<uint64_t>(number("dense_steps", 0))};
  spec.threshold = static_cast<float>(number("threshold", spec.threshold));
  spec.chunk_log2 = static_cast<uint32_t>(number("chunk_log2", spec.chunk_log2));
  spec.period = static_cast<uint32_t>(number("period", spec.period));
  if (number("unbiased", 0) != 0) spec.scale = RandomKScale::kUnbiased;
  return spec;
}

std::vector<CodecPreset> CodecPresets() {
  std::vector<CodecPreset> presets = DensePresets();
  std::ranges::move(QuantizerPresets(), std::back_inserter(presets));
  std::ranges::move(SelectorPresets(), std::back_inserter(presets));
  presets.push_back(SparseLoCoPreset());
  presets.push_back(DeMoPreset());
  presets.push_back(AutoPreset());
  presets.push_back(PowerSgdPreset());
  for (CodecPreset& preset : presets) {
    if (preset.kind == CodecPreset::Kind::kDense) continue;
    preset.options.insert(preset.options.end(), std::begin(kCommon), std::end(kCommon));
    if (preset.name == "sparseloco") SetSparseLoCoStandards(preset);
    if (preset.name == "demo") SetDeMoStandards(preset);
  }
  return presets;
}

}  // namespace syncline
