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
#include "comm/codec/transfer.h"

namespace syncline {

using SharedCodec = std::shared_ptr<const Codec>;

// What a preset is made of: its numbers, and the codec of the values it selects.
struct PresetParts {
  OptionValues numbers = {};
  std::span<const OptionSpec> specs = {};
  SharedCodec values = nullptr;

  double Number(std::string_view name) const { return OptionOr(specs, numbers, name); }
};

struct CodecPreset {
  std::string_view name = {};
  std::string_view meaning = {};
  std::vector<OptionSpec> options = {};
  enum class Kind { kDense, kQuantizer, kSelector, kFactors } kind = Kind::kDense;
  MemoryKind memory = MemoryKind::kNone;
  bool follows = true;  // deltas of it bring a view nearer to the weights
  std::function<absl::StatusOr<SharedCodec>(const PresetParts&)> make = nullptr;
};

// All of them, with the options that every lossy one takes.
std::vector<CodecPreset> CodecPresets();

}  // namespace syncline
