#include "comm/compression/transfer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/compression/transfer_candidates.h"
#include "comm/compression/transfer_presets.h"
#include "comm/compression/transfer_rules.h"

namespace syncline {
namespace {

using Texts = std::map<std::string, std::string, std::less<>>;
// ---- Reading ----

struct Reading {
  CodecPreset preset = {};
  OptionValues numbers = {};
  Texts texts = {};  // "memory", "values", "scope"
};

absl::Status Unknown(std::string_view what, std::string_view name,
                     std::span<const std::string_view> names) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), " '",
                                                 std::string(name), "' is unknown",
                                                 DidYouMean(name, names)));
}

// Names that other programs use: (alias, preset).
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"bytegrad", "int8"}, {"dithering", "int8-stochastic"}, {"1bit", "onebit"}};

absl::StatusOr<CodecPreset> FindPreset(std::string_view name) {
  for (const auto& [alias, preset] : kAliases) {
    if (name == alias) name = preset;
  }
  std::vector<std::string_view> names;
  for (CodecPreset& preset : CodecPresets()) {
    if (preset.name == name) return std::move(preset);
    names.push_back(preset.name);
  }
  return Unknown("codec", name, names);
}

bool TakesText(const CodecPreset& preset, std::string_view option) {
  using enum CodecPreset::Kind;
  // Candidates of auto share error feedback and have no other memory.
  if (preset.kind == kDense || preset.kind == kAuto) return false;
  if (preset.keeps_momentum && option != "values") return false;
  if (option == "memory") return true;
  if (preset.kind != CodecPreset::Kind::kSelector) return false;
  return option == "values" ||
         (option == "scope" && preset.selector.kind == SelectorKind::kTopK);
}

absl::Status UnknownOption(const CodecPreset& preset, const std::string& owner,
                           const std::string& option) {
  std::vector<std::string_view> names;
  for (const OptionSpec& spec : preset.options) names.push_back(spec.name);
  for (const std::string_view text : {"memory", "values", "scope"}) {
    if (TakesText(preset, text)) names.push_back(text);
  }
  if (names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(owner, " has no options, but '", option, "' is set"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(owner, " has no option '", option, "'", DidYouMean(option, names)));
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

// Returns the shortest text that parses to the same number.
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

std::string CanonicalCodec(std::string_view text) {
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

// Checks whether deltas may be published with this transfer.
absl::Status CheckPublishes(const Transfer& transfer) {
  if (transfer.chooses()) {
    return absl::InvalidArgumentError(
        "'auto' chooses by what one sender measures on its way to one receiver, but one "
        "encoding of a view goes to all workers; name a codec");
  }
  if (transfer.selector && transfer.selector->scope == SelectorScope::kTensor) {
    return absl::InvalidArgumentError(
        "scope=tensor needs all of a tensor in one place, but its blocks lie on several "
        "servers; take scope=tile");
  }
  if (transfer.memory.kind == MemoryKind::kMomentumCorrection) {
    return absl::InvalidArgumentError(
        "momentum is corrected where gradients are pushed, and a published view has "
        "none; "
        "take 'topk' here");
  }
  const CodecTraits traits = transfer.codec->traits();
  if (transfer.follows && traits.variance < 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "deltas of this codec may be larger than what they stand for, and the workers' "
      "weights would never settle; it is for gradients only");
}

absl::StatusOr<SelectorScope> FindScope(const Reading& reading) {
  const auto text = reading.texts.find("scope");
  if (text == reading.texts.end() || text->second == "tile") return SelectorScope::kTile;
  if (text->second == "tensor") return SelectorScope::kTensor;
  return absl::InvalidArgumentError(
      absl::StrCat("scope '", text->second, "' is unknown; it is 'tile' or 'tensor'"));
}

// Fills in the parts of a selector that are not numbers.
absl::Status ReadSelector(const Reading& reading, PresetParts& parts) {
  parts.selector = SelectorOf(reading.preset, parts);
  SYNCLINE_ASSIGN_OR_RETURN(parts.selector.scope, FindScope(reading));
  const auto values = reading.texts.find("values");
  SYNCLINE_ASSIGN_OR_RETURN(
      const Reading inner,
      Read(values == reading.texts.end() ? reading.preset.values
                                         : std::string_view(values->second)));
  if (inner.preset.kind == CodecPreset::Kind::kFactors) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec '", std::string(reading.preset.name), "': values cannot be '",
                     values->second, "', which needs whole matrices"));
  }
  if (inner.preset.make == nullptr || inner.preset.kind == CodecPreset::Kind::kSelector) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec '", std::string(reading.preset.name), "': values cannot be '",
                     values->second, "', which selects itself"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      parts.values,
      inner.preset.make({.numbers = inner.numbers, .specs = inner.preset.options}));
  return absl::OkStatus();
}

}  // namespace

Transfer::Shape Transfer::ShapeOf(std::string_view name,
                                  std::span<const uint64_t> extents) {
  Shape shape = {.elements = 1, .dimensions = extents.size(), .name = std::string(name)};
  for (const uint64_t extent : extents) shape.elements *= extent;
  shape.columns = extents.empty() || extents[0] == 0 ? 0 : shape.elements / extents[0];
  return shape;
}

uint64_t Transfer::TensorTopCount(uint64_t elements, uint64_t step) const {
  if (!selector || selector->scope != SelectorScope::kTensor) return 0;
  if (elements <= kTileElements) return 0;  // the tile is the whole tensor
  return TopCount(*selector, elements, step);
}

Transfer Transfer::Using(Candidate candidate) const {
  Transfer transfer = *this;
  transfer.codec = candidates[static_cast<size_t>(candidate)];
  return transfer;
}

CodecSet Transfer::Accepted() const {
  if (!compresses()) return {codec.get()};
  if (chooses()) return AcceptedOf(candidates);
  return {codec.get(), dense.get()};
}

absl::StatusOr<Transfer> Transfer::ForTensor(const Shape& shape) const {
  const bool is_small = shape.elements < what.min_elements;
  const bool is_vector = shape.dimensions <= 1 && !what.vectors;
  if (!compresses()) return *this;
  if (is_small || is_vector) {
    return Transfer{
        .codec = dense, .dense = nullptr, .memory = {}, .what = what, .votes = votes};
  }
  const uint64_t rows = shape.columns == 0 ? 0 : shape.elements / shape.columns;
  absl::StatusOr<std::unique_ptr<Codec>> own = codec->ForMatrix(rows, shape.columns);
  if (!own.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", shape.name, "': ", std::string(own.status().message())));
  }
  Transfer transfer = *this;
  if (*own != nullptr) transfer.codec = *std::move(own);
  return transfer;
}

absl::StatusOr<Transfer> ParseTransfer(std::string_view text) {
  SYNCLINE_ASSIGN_OR_RETURN(const Reading reading, Read(text));
  const CodecPreset& preset = reading.preset;
  PresetParts parts = {.numbers = reading.numbers, .specs = preset.options};
  Transfer transfer = {.follows = preset.follows};
  if (preset.kind == CodecPreset::Kind::kDense) {
    SYNCLINE_ASSIGN_OR_RETURN(transfer.codec, preset.make(parts));
    return transfer;
  }
  if (preset.kind == CodecPreset::Kind::kSelector) {
    SYNCLINE_RETURN_IF_ERROR(ReadSelector(reading, parts));
    transfer.selector = parts.selector;
    if (preset.selector.kind == SelectorKind::kTopK) {
      transfer.mean_of_senders = parts.Number("mean_of_senders") != 0;
    }
  }
  if (preset.kind == CodecPreset::Kind::kAuto) {
    transfer.policy = {.ratio = parts.Number("ratio"),
                       .by_statistics = parts.Number("statistics") != 0};
    SYNCLINE_ASSIGN_OR_RETURN(transfer.candidates, MakeCandidates(transfer.policy));
    transfer.codec = transfer.candidates[static_cast<size_t>(Candidate::kTopK)];
  } else {
    SYNCLINE_ASSIGN_OR_RETURN(transfer.codec, preset.make(parts));
  }
  transfer.dense = MakeBf16Codec();
  transfer.votes = preset.votes;
  transfer.keeps_momentum = preset.keeps_momentum;
  SYNCLINE_ASSIGN_OR_RETURN(transfer.memory.kind, FindMemory(reading));
  const CodecTraits traits = transfer.codec->traits();
  if (transfer.memory.kind != MemoryKind::kNone && traits.variance >= 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec '", std::string(preset.name),
                     "' may lose more than it was given (variance ", traits.variance,
                     "), so what a memory keeps would grow without end; set "
                     "memory=none"));
  }
  transfer.memory.decay = parts.Number("decay");
  transfer.memory.momentum = parts.NumberOr("momentum", transfer.memory.momentum);
  transfer.memory.nesterov = parts.NumberOr("nesterov", 0) != 0;
  transfer.what.min_elements = static_cast<uint64_t>(parts.Number("min_elements"));
  transfer.what.dense_steps = static_cast<uint64_t>(parts.Number("dense_steps"));
  transfer.what.vectors = parts.Number("vectors") != 0;
  return transfer;
}

absl::StatusOr<std::vector<TensorTransfers>> ParseTransfers(
    std::string_view push, std::string_view publish,
    std::span<const Transfer::Shape> tensors) {
  SYNCLINE_ASSIGN_OR_RETURN(const TransferRules up,
                            TransferRules::Parse("push_codec", push));
  SYNCLINE_ASSIGN_OR_RETURN(const TransferRules down,
                            TransferRules::Parse("publish_codec", publish));
  for (const TransferRules::Rule& rule : down.rules()) {
    const absl::Status publishes = CheckPublishes(rule.transfer);
    if (publishes.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(down.Where(rule), std::string(publishes.message())));
  }
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Transfer> pushes, up.ForTensors(tensors));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Transfer> publishes, down.ForTensors(tensors));
  std::vector<TensorTransfers> transfers;
  for (size_t i = 0; i < tensors.size(); ++i) {
    publishes[i].memory = {};  // the view itself is the memory
    transfers.push_back(
        {.push = std::move(pushes[i]), .publish = std::move(publishes[i])});
  }
  return transfers;
}

std::string CanonicalTransfer(std::string_view text) {
  const absl::StatusOr<std::vector<RuleText>> rules = SplitRules(text);
  if (!rules.ok()) return std::string(text);
  return absl::StrJoin(*rules, ";", [](std::string* out, const RuleText& rule) {
    absl::StrAppend(out, CanonicalCodec(rule.codec));
    if (!rule.pattern.empty()) absl::StrAppend(out, "@", std::string(rule.pattern));
  });
}

std::vector<TransferPreset> TransferPresets() {
  std::vector<TransferPreset> presets;
  for (const CodecPreset& preset : CodecPresets()) {
    presets.push_back({preset.name, preset.meaning, preset.options});
  }
  return presets;
}

}  // namespace syncline
