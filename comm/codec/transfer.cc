#include "comm/codec/transfer.h"

#include <algorithm>
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
#include "comm/codec/sign/sign.h"

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
  std::function<Made(const Parts&)> make = nullptr;
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
    {.name = "vectors",
     .kind = OptionKind::kFlag,
     .meaning = "1: tensors of one dimension are compressed too"}};

std::vector<Preset> DensePresets() {
  return {{.name = "fp32",
           .meaning = "4 bytes, as it is",
           .make = [](const Parts&) { return MakeFp32Codec(); }},
          {.name = "bf16",
           .meaning = "2 bytes, rounded to nearest even",
           .make = [](const Parts&) { return MakeBf16Codec(); }},
          {.name = "fp16",
           .meaning = "2 bytes, for gradients of a scaled loss",
           .make = [](const Parts&) { return MakeFp16Codec(); }},
          {.name = "bf16-stochastic",
           .meaning = "2 bytes, rounded at random",
           .make = [](const Parts&) { return MakeStochasticBf16Codec(); }}};
}

std::vector<Preset> QuantizerPresets() {
  using enum Preset::Kind;
  return {{.name = "onebit",
           .meaning = "signs, and the mean magnitude of each block",
           .options = {kBlock},
           .kind = kQuantizer,
           .memory = MemoryKind::kErrorFeedback,
           .make =
               [](const Parts& parts) {
                 return MakeSignCodec(
                     {.block_log2 = static_cast<uint32_t>(parts.Number("block_log2"))});
               }},
          {.name = "signsgd",
           .meaning = "signs alone: the sum is a vote",
           .kind = kQuantizer,
           .make = [](const Parts&) {
             return MakeSignCodec({.block_log2 = 16, .scale = SignScale::kOne});
           }}};
}

std::vector<Preset> Presets() {
  std::vector<Preset> presets = DensePresets();
  std::ranges::move(QuantizerPresets(), std::back_inserter(presets));
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

absl::StatusOr<Reading> Read(std::string_view text) {
  const size_t colon = text.find(':');
  Reading reading;
  SYNCLINE_ASSIGN_OR_RETURN(reading.preset, FindPreset(text.substr(0, colon)));
  if (colon == std::string_view::npos) return reading;
  const std::string rest(text.substr(colon + 1));
  std::vector<std::string> assignments;
  for (const absl::string_view one : absl::StrSplit(rest, ',')) {
    const std::pair<std::string, std::string> entry =
        absl::StrSplit(one, absl::MaxSplits('=', 1));
    if (TakesText(reading.preset, entry.first)) {
      reading.texts[entry.first] = entry.second;
    } else {
      assignments.emplace_back(one);
    }
  }
  SYNCLINE_ASSIGN_OR_RETURN(reading.numbers, ParseOptions(assignments));
  SYNCLINE_RETURN_IF_ERROR(
      ValidateOptions(absl::StrCat("codec '", std::string(reading.preset.name), "'"),
                      reading.preset.options, reading.numbers));
  return reading;
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
  if (preset.kind == Preset::Kind::kDense) return Transfer{.codec = preset.make(parts)};
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
    parts.values =
        inner.preset.make({.numbers = inner.numbers, .specs = inner.preset.options});
  }
  Transfer transfer = {.codec = preset.make(parts), .dense = MakeBf16Codec()};
  SYNCLINE_ASSIGN_OR_RETURN(transfer.memory.kind, FindMemory(reading));
  transfer.memory.decay = parts.Number("decay");
  transfer.memory.momentum = parts.Number("momentum");
  transfer.memory.nesterov = parts.Number("nesterov") != 0;
  transfer.what.min_elements = static_cast<uint64_t>(parts.Number("min_elements"));
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
    options.push_back(absl::StrCat(name, "=", value));
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
