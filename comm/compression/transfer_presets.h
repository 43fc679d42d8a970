// The presets that texts of transfers name (transfer.h): which codec each one makes from
// which options. A new codec gets an entry here.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/base/options.h"
#include "comm/codec/sparse/selector.h"
#include "comm/compression/transfer.h"

namespace syncline {

// The inputs of a preset: its numbers, its selector and the codec of the selected values.
struct PresetParts {
  OptionValues numbers = {};
  std::span<const OptionSpec> specs = {};
  SelectorSpec selector = {};  // SelectorOf
  SharedCodec values = nullptr;

  double Number(std::string_view name) const { return OptionOr(specs, numbers, name); }
  // The same for an option that not every preset has.
  double NumberOr(std::string_view name, double otherwise) const {
    const bool has = std::ranges::count(specs, name, &OptionSpec::name) > 0;
    return has ? Number(name) : otherwise;
  }
};

struct CodecPreset {
  std::string_view name = {};
  std::string_view meaning = {};
  std::vector<OptionSpec> options = {};
  enum class Kind { kDense, kQuantizer, kSelector, kFactors, kAuto } kind = Kind::kDense;
  SelectorSpec selector = {};        // kSelector, with the standard options
  std::string_view values = "fp32";  // kSelector: how it sends values
  MemoryKind memory = MemoryKind::kNone;
  bool votes = false;   // Transfer::votes
  bool follows = true;  // Transfer::follows
  // Transfer::keeps_momentum. Such a preset has no other memory, and no scope: its
  // selector sees coefficients of one tile.
  bool keeps_momentum = false;
  // Null for kAuto, which is made of several codecs (transfer_candidates.h).
  std::function<absl::StatusOr<SharedCodec>(const PresetParts&)> make = nullptr;
};

// Returns the preset's selector with the numbers of the text.
SelectorSpec SelectorOf(const CodecPreset& preset, const PresetParts& parts);

// Returns all presets, with the options that every lossy one takes.
std::vector<CodecPreset> CodecPresets();

}  // namespace syncline
