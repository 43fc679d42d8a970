#include "comm/codec/transfer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/codec/fp16/fp16.h"
#include "comm/codec/fp32/fp32.h"
#include "comm/codec/integer/integer.h"
#include "comm/codec/natural/natural.h"
#include "comm/codec/sign/sign.h"
#include "comm/codec/sparse/sparse.h"

namespace syncline {
namespace {

using Texts = std::map<std::string, std::string, std::less<>>;
using Made = std::shared_ptr<const Codec>;

// What a preset is made of: its numbers, and the codec of the values it selects.
struct Parts {
  OptionValues numbers = {};
  std::span<const OptionSpec> specs = {};
  Made values = nullptr;

  double Number(std::string_view name) const { return OptionOr(specs, numbers, name); }
};

struct Preset {
  std::string_view name = {};
  std::string_view meaning = {};
  std::vector<OptionSpec> options = {};
  enum class Kind { kDense, kQuantizer, kSelector } kind = Kind::kDense;
  MemoryKind memory = MemoryKind::kNone;
  bool follows = true;  // deltas of it bring a view nearer to the weights
  std::function<absl::StatusOr<Made>(const Parts&)> make = nullptr;
};

const OptionSpec kBlock = {.name = "block_log2",
                           .standard = 12,
                           .least = 8,
                           .most = 16,
                           .kind = OptionKind::kWhole,
                           .meaning = "2^n values share a scale"};

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

std::vector<Preset> DensePresets() {
  return {{.name = "fp32",
           .meaning = "4 bytes, as it is",
           .make = [](const Parts&) -> absl::StatusOr<Made> { return MakeFp32Codec(); }},
          {.name = "bf16",
           .meaning = "2 bytes, rounded to nearest even",
           .make = [](const Parts&) -> absl::StatusOr<Made> { return MakeBf16Codec(); }},
          {.name = "fp16",
           .meaning = "2 bytes, for gradients of a scaled loss",
           .make = [](const Parts&) -> absl::StatusOr<Made> { return MakeFp16Codec(); }},
          {.name = "bf16-stochastic",
           .meaning = "2 bytes, rounded at random",
           .make = [](const Parts&) -> absl::StatusOr<Made> {
             return MakeStochasticBf16Codec();
           }}};
}

Preset Integers(std::string_view name, std::string_view meaning,
                const IntegerOptions& standard) {
  Preset preset = {.name = name,
                   .meaning = meaning,
                   .options = {kBlock},
                   .kind = Preset::Kind::kQuantizer,
                   .memory = standard.rounding == IntegerRounding::kNearest
                                 ? MemoryKind::kErrorFeedback
                                 : MemoryKind::kNone,
                   .make = [standard](const Parts& parts) -> absl::StatusOr<Made> {
                     IntegerOptions options = standard;
                     options.block_log2 =
                         static_cast<uint32_t>(parts.Number("block_log2"));
                     return MakeIntegerCodec(options);
                   }};
  preset.options.front().standard = standard.block_log2;
  return preset;
}

std::vector<Preset> QuantizerPresets() {
  using enum Preset::Kind;
  constexpr auto kStochastic = IntegerRounding::kStochastic;
  std::vector<Preset> presets = {
      {.name = "onebit",
       .meaning = "signs, and the mean magnitude of each block",
       .options = {kBlock},
       .kind = kQuantizer,
       .memory = MemoryKind::kErrorFeedback,
       .make = [](const Parts& parts) -> absl::StatusOr<Made> {
         return MakeSignCodec(
             {.block_log2 = static_cast<uint32_t>(parts.Number("block_log2"))});
       }},
      {.name = "signsgd",
       .meaning = "signs alone: their sum is a vote",
       .kind = kQuantizer,
       .follows = false,
       .make = [](const Parts&) -> absl::StatusOr<Made> {
         return MakeSignCodec({.block_log2 = 16, .scale = SignScale::kOne});
       }},
      {.name = "natural",
       .meaning = "1 byte, rounded at random to a power of two",
       .kind = kQuantizer,
       .make = [](const Parts&) -> absl::StatusOr<Made> { return MakeNaturalCodec(); }}};
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
  add("terngrad", "int2, rounded at random", {.bits = 2, .rounding = kStochastic});
  add("qsgd", "8-bit integers of the block's norm, rounded at random",
      {.bits = 8, .rounding = kStochastic, .range = IntegerRange::kL2});
  return presets;
}

Preset Selects(std::string_view name, std::string_view meaning,
               const SelectorSpec& standard) {
  const OptionSpec ratio = {.name = "ratio",
                            .standard = standard.ratio,
                            .least = 1e-6,
                            .most = 1,
                            .meaning = "share of the values that is sent"};
  Preset preset = {
      .name = name,
      .meaning = meaning,
      .options = {ratio},
      .kind = Preset::Kind::kSelector,
      .memory = MemoryKind::kErrorFeedback,
      .make = [name, standard](const Parts& parts) -> absl::StatusOr<Made> {
        const auto number = [&](std::string_view option, double otherwise) {
          const bool has = std::ranges::count(parts.specs, option, &OptionSpec::name) > 0;
          return has ? parts.Number(option) : otherwise;
        };
        SelectorSpec spec = standard;
        spec.ratio = number("ratio", spec.ratio);
        spec.threshold = static_cast<float>(number("threshold", spec.threshold));
        spec.period = static_cast<uint32_t>(number("period", spec.period));
        if (number("unbiased", 0) != 0) spec.scale = RandomKScale::kUnbiased;
        SYNCLINE_ASSIGN_OR_RETURN(
            std::unique_ptr<Codec> codec,
            MakeSparseCodec(
                {.name = std::string(name), .selector = spec, .values = parts.values}));
        return Made(std::move(codec));
      }};
  switch (standard.kind) {
    case SelectorKind::kThreshold:
      preset.options = {{.name = "threshold",
                         .standard = standard.threshold,
                         .most = 1e30,
                         .meaning = "what is above it is sent"}};
      break;
    case SelectorKind::kBlocks:
      preset.options.clear();
      preset.memory = MemoryKind::kNone;
      break;
    case SelectorKind::kTopKReuse:
      preset.options.push_back({.name = "period",
                                .standard = static_cast<double>(standard.period),
                                .least = 1,
                                .most = 1e6,
                                .kind = OptionKind::kWhole,
                                .meaning = "steps between exact thresholds"});
      break;
    case SelectorKind::kRandomK:
      preset.options.push_back(
          {.name = "unbiased",
           .kind = OptionKind::kFlag,
           .meaning = "1: sent values are divided by the ratio; for memory=none"});
      break;
    default:
      break;
  }
  return preset;
}

std::vector<Preset> SelectorPresets() {
  std::vector<Preset> presets = {
      Selects("topk", "the largest values of each tile", {.kind = SelectorKind::kTopK}),
      Selects("topk-sampled", "those above a threshold from 1 % of the values",
              {.kind = SelectorKind::kTopKSampled}),
      Selects("topk-reuse", "those above the threshold of an earlier step",
              {.kind = SelectorKind::kTopKReuse}),
      Selects("randomk", "values at random; only a seed says which",
              {.kind = SelectorKind::kRandomK}),
      Selects("threshold", "values above a fixed threshold",
              {.kind = SelectorKind::kThreshold, .threshold = 0.01f}),
      Selects("blocks", "all blocks of 256 values that are not zero",
              {.kind = SelectorKind::kBlocks}),
      Selects("dgc", "topk with momentum on the worker",
              {.kind = SelectorKind::kTopK, .ratio = 0.001})};
  presets.back().memory = MemoryKind::kMomentumCorrection;
  return presets;
}

std::vector<Preset> Presets() {
  std::vector<Preset> presets = DensePresets();
  std::ranges::move(QuantizerPresets(), std::back_inserter(presets));
  std::ranges::move(SelectorPresets(), std::back_inserter(presets));
  for (Preset& preset : presets) {
    if (preset.kind == Preset::Kind::kDense) continue;
    preset.options.insert(preset.options.end(), std::begin(kCommon), std::end(kCommon));
  }
  return presets;
}

// ---- Reading ----

struct Reading {
  Preset preset = {};
  OptionValues numbers = {};
  Texts texts = {};  // "memory", "values"
};

absl::Status Unknown(std::string_view what, std::string_view name,
                     std::span<const std::string_view> names) {
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(what), " '", std::string(name), "' is unknown; did you mean '",
      std::string(NearestName(name, names)), "'?"));
}

absl::StatusOr<Preset> FindPreset(std::string_view name) {
  std::vector<std::string_view> names;
  for (Preset& preset : Presets()) {
    if (preset.name == name) return std::move(preset);
    names.push_back(preset.name);
  }
  return Unknown("codec", name, names);
}

bool TakesText(const Preset& preset, std::string_view option) {
  if (preset.kind == Preset::Kind::kDense) return false;
  return option == "memory" ||
         (option == "values" && preset.kind == Preset::Kind::kSelector);
}

absl::Status UnknownOption(const Preset& preset, const std::string& owner,
                           const std::string& option) {
  std::vector<std::string_view> names;
  for (const OptionSpec& spec : preset.options) names.push_back(spec.name);
  for (const std::string_view text : {"memory", "values"}) {
    if (TakesText(preset, text)) names.push_back(text);
  }
  if (names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(owner, " has no options, but '", option, "' is set"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(owner, " has no option '", option, "'; did you mean '",
                   std::string(NearestName(option, names)), "'?"));
}

absl::StatusOr<Reading> Read(std::string_view text) {
  const size_t colon = text.find(':');
  Reading reading;
  SYNCLINE_ASSIGN_OR_RETURN(reading.preset, FindPreset(text.substr(0, colon)));
  if (colon == std::string_view::npos) return reading;
  const std::string owner =
      absl::StrCat("codec '", std::string(reading.preset.name), "'");
  const std::string rest(text.substr(colon + 1));
  std::vector<std::string> assignments;
  for (const absl::string_view one : absl::StrSplit(rest, ',')) {
    const std::pair<std::string, std::string> entry =
        absl::StrSplit(one, absl::MaxSplits('=', 1));
    if (TakesText(reading.preset, entry.first)) {
      reading.texts[entry.first] = entry.second;
    } else {
      const bool is_known = std::ranges::any_of(
          reading.preset.options,
          [&](const OptionSpec& option) { return option.name == entry.first; });
      if (!is_known) return UnknownOption(reading.preset, owner, entry.first);
      assignments.emplace_back(one);
    }
  }
  SYNCLINE_ASSIGN_OR_RETURN(reading.numbers, ParseOptions(assignments));
  SYNCLINE_RETURN_IF_ERROR(
      ValidateOptions(owner, reading.preset.options, reading.numbers));
  return reading;
}

// The shortest text that reads back as the same number.
std::string Shortest(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

struct MemoryName {
  std::string_view name;
  MemoryKind kind;
};
constexpr MemoryName kMemories[] = {{"none", MemoryKind::kNone},
                                    {"ef", MemoryKind::kErrorFeedback},
                                    {"dgc", MemoryKind::kMomentumCorrection}};

absl::StatusOr<MemoryKind> FindMemory(const Reading& reading) {
  const auto text = reading.texts.find("memory");
  if (text == reading.texts.end()) return reading.preset.memory;
  std::vector<std::string_view> names;
  for (const MemoryName& memory : kMemories) {
    if (memory.name == text->second) return memory.kind;
    names.push_back(memory.name);
  }
  if (text->second == "ef21") {
    return absl::InvalidArgumentError(
        "memory 'ef21' needs the servers to keep a copy for each worker, which would not "
        "survive its death; published views work that way, for gradients take 'ef'");
  }
  return Unknown("memory", text->second, names);
}

}  // namespace

CodecSet Transfer::Accepted() const {
  if (!compresses()) return {codec.get()};
  return {codec.get(), dense.get()};
}

Transfer Transfer::ForTensor(const Shape& shape) const {
  const bool is_small = shape.elements < what.min_elements;
  const bool is_vector = shape.dimensions <= 1 && !what.vectors;
  if (!compresses() || !(is_small || is_vector)) return *this;
  return {.codec = dense, .dense = nullptr, .memory = {}, .what = what};
}

absl::StatusOr<Transfer> ParseTransfer(std::string_view text) {
  SYNCLINE_ASSIGN_OR_RETURN(const Reading reading, Read(text));
  const Preset& preset = reading.preset;
  Parts parts = {.numbers = reading.numbers, .specs = preset.options};
  Transfer transfer;
  if (preset.kind == Preset::Kind::kDense) {
    SYNCLINE_ASSIGN_OR_RETURN(transfer.codec, preset.make(parts));
    return transfer;
  }
  if (preset.kind == Preset::Kind::kSelector) {
    const auto values = reading.texts.find("values");
    SYNCLINE_ASSIGN_OR_RETURN(
        const Reading inner,
        Read(values == reading.texts.end() ? "fp32" : std::string_view(values->second)));
    if (inner.preset.kind == Preset::Kind::kSelector) {
      return absl::InvalidArgumentError(
          absl::StrCat("codec '", std::string(preset.name), "': values cannot be '",
                       values->second, "', which selects itself"));
    }
    SYNCLINE_ASSIGN_OR_RETURN(
        parts.values,
        inner.preset.make({.numbers = inner.numbers, .specs = inner.preset.options}));
  }
  SYNCLINE_ASSIGN_OR_RETURN(transfer.codec, preset.make(parts));
  transfer.dense = MakeBf16Codec();
  SYNCLINE_ASSIGN_OR_RETURN(transfer.memory.kind, FindMemory(reading));
  const CodecTraits traits = transfer.codec->traits();
  if (transfer.memory.kind != MemoryKind::kNone && traits.unbiased &&
      traits.variance >= 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec '", std::string(preset.name),
                     "' may lose more than it was given (variance ", traits.variance,
                     "), so what a memory keeps would grow without end; set "
                     "memory=none"));
  }
  transfer.memory.decay = parts.Number("decay");
  transfer.memory.momentum = parts.Number("momentum");
  transfer.memory.nesterov = parts.Number("nesterov") != 0;
  transfer.what.min_elements = static_cast<uint64_t>(parts.Number("min_elements"));
  transfer.what.dense_steps = static_cast<uint64_t>(parts.Number("dense_steps"));
  transfer.what.vectors = parts.Number("vectors") != 0;
  return transfer;
}

absl::StatusOr<std::vector<TensorTransfers>> ParseTransfers(
    std::string_view push, std::string_view publish,
    std::span<const Transfer::Shape> tensors) {
  const auto parse = [](std::string_view setting,
                        std::string_view text) -> absl::StatusOr<Transfer> {
    absl::StatusOr<Transfer> transfer = ParseTransfer(text);
    if (transfer.ok()) return transfer;
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(setting), ": ", std::string(transfer.status().message())));
  };
  SYNCLINE_ASSIGN_OR_RETURN(const Transfer up, parse("push_codec", push));
  SYNCLINE_ASSIGN_OR_RETURN(Transfer down, parse("publish_codec", publish));
  SYNCLINE_ASSIGN_OR_RETURN(const Reading reading, Read(publish));
  const CodecTraits traits = down.codec->traits();
  if (!reading.preset.follows || (traits.unbiased && traits.variance >= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "publish_codec: deltas in '", std::string(reading.preset.name),
        "' may be larger than what they stand for, and the workers' weights would never "
        "settle; it is for gradients only"));
  }
  down.memory = {};  // the view is the memory
  std::vector<TensorTransfers> transfers;
  for (const Transfer::Shape& shape : tensors) {
    transfers.push_back({.push = up.ForTensor(shape), .publish = down.ForTensor(shape)});
  }
  return transfers;
}

std::string CanonicalTransfer(std::string_view text) {
  const absl::StatusOr<Reading> reading = Read(text);
  if (!reading.ok()) return std::string(text);
  std::vector<std::string> options;
  for (const auto& [name, value] :
       WithoutDefaults(reading->preset.options, reading->numbers)) {
    options.push_back(absl::StrCat(name, "=", Shortest(value)));
  }
  for (const auto& [name, value] : reading->texts) {
    options.push_back(absl::StrCat(name, "=", value));
  }
  const std::string name(reading->preset.name);
  return options.empty() ? name : absl::StrCat(name, ":", absl::StrJoin(options, ","));
}

std::vector<TransferPreset> TransferPresets() {
  std::vector<TransferPreset> presets;
  for (const Preset& preset : Presets()) {
    presets.push_back({preset.name, preset.meaning, preset.options});
  }
  return presets;
}

}  // namespace syncline
