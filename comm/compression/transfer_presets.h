// The presets that texts of transfers name (transfer.h): which codec each one makes, of
// which options. A new codec gets its line here.
#pragma once

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

// What a preset is made of: its numbers, what it selects and the codec of these values.
struct PresetParts {
  OptionValues numbers = {};
  std::span<const OptionSpec> specs = {};
  SelectorSpec selector = {};  // SelectorOf
  SharedCodec values = nullptr;

  double Number(std::string_view name) const { return OptionOr(specs, numbers, name); }
};

struct CodecPreset {
  std::string_view name = {};
  std::string_view meaning = {};
  std::vector<OptionSpec> options = {};
  enum class Kind { kDense, kQuantizer, kSelector, kFactors, kAuto } kind = Kind::kDense;
  SelectorSpec selector = {};        // of kSelector, with the standard options
  std::string_view values = "fp32";  // how kSelector sends them
  MemoryKind memory = MemoryKind::kNone;
  bool votes = false;   // Transfer::votes
  bool follows = true;  // deltas of it bring a view nearer to the weights
  // Null for kAuto, which is made of several (transfer_candidates.h).
  std::function<absl::StatusOr<SharedCodec>(const PresetParts&)> make = nullptr;
};

// What a selector selects by the numbers of its text.
SelectorSpec SelectorOf(const CodecPreset& preset, const PresetParts& parts);

// All of them, with the options that every lossy one takes.
std::vector<CodecPreset> CodecPresets();

}  // namespace syncline
