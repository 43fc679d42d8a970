#include "worker/client/presets.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

struct Preset {
  std::string_view name;
  std::string_view optimizer;
  std::string_view push = "fp32";
  std::string_view publish = "fp32";
  // Whether the program pushes the changes of rounds rather than gradients.
  bool has_rounds = true;
};

constexpr std::string_view kNesterov = "sgd:lr=0.7,momentum=0.9,nesterov=1";

// Keep these the same as in worker/python/src/syncline/torch/_local/presets.py, which also has
// the rounds.
constexpr std::array kPresets = {
    // Douillard et al. 2023, arXiv 2311.08105.
    Preset{.name = "diloco", .optimizer = kNesterov},
    // Douillard et al. 2025, arXiv 2501.18512: pushes have 4 bits.
    Preset{.name = "streaming-diloco",
           .optimizer = kNesterov,
           .push = "int4",
           .publish = "int8"},
    // Sarfi et al. 2025, arXiv 2508.15706. Views have as many values as two workers push.
    Preset{.name = "sparseloco",
           .optimizer = "sgd:lr=1",
           .push = "sparseloco",
           .publish = "sparseloco:ratio=0.03125"},
    // Lin et al. 2018, arXiv 1808.07217.
    Preset{.name = "post-local-sgd", .optimizer = "sgd:lr=1"},
    // Peng et al. 2024, arXiv 2411.19870: gradients of each step. Weights change by plus or
    // minus the rate, which takes a bit.
    Preset{.name = "demo",
           .optimizer = "signsgd:lr=0.001",
           .push = "demo",
           .publish = "onebit",
           .has_rounds = false},
};

bool HasRounds(std::string_view name) {
  const auto found = std::ranges::find(kPresets, name, &Preset::name);
  return found != kPresets.end() && found->has_rounds;
}

}  // namespace

absl::Status ApplyPreset(std::string_view name, SessionOptions& options) {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) {
    names.push_back(preset.name);
    if (preset.name != name) continue;
    SYNCLINE_ASSIGN_OR_RETURN(options.training.optimizer,
                              ParseNamedOptions(preset.optimizer));
    options.settings.push_codec = preset.push;
    options.settings.publish_codec = preset.publish;
    options.preset = preset.name;
    return absl::OkStatus();
  }
  std::vector<std::string> written(names.begin(), names.end());
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(name), "' is not a preset; there are ",
                   absl::StrJoin(written, ", "), DidYouMean(name, names)));
}

// Keep the reasons the same as in worker/python/src/syncline/torch/_local/decoupled.py.
absl::Status CheckRounds(const SessionOptions& options) {
  const std::string& mode = options.training.mode.name;
  if (!HasRounds(options.preset) || (mode != "asp" && mode != "ssp")) {
    return absl::OkStatus();
  }
  const OptionValues& optimizer = options.training.optimizer.values;
  const auto every = optimizer.find("momentum_every");
  if (mode == "asp" && every != optimizer.end() && every->second > 1) {
    return absl::OkStatus();  // each push is a part of an outer step
  }
  const char* why = mode == "asp"
                        ? "makes each worker's push an outer step of its own at the full "
                          "rate, although a round should be one step with the mean of "
                          "all: with W workers the weights would move W times as far"
                        : "lets a worker go on with weights that lack its own last "
                          "round, and they would replace what it has trained since";
  return absl::InvalidArgumentError(absl::StrCat(
      "preset=", options.preset, " with mode=", FormatNamedOptions(options.training.mode),
      ", which ", why, "; take bsp, or bsp:quorum=K, which waits for K workers",
      mode == "asp" ? ", or momentum_every=W of the outer optimizer" : "",
      " (docs/local_sgd.md)"));
}

std::string_view PresetOf(const SessionOptions& options) {
  for (const Preset& preset : kPresets) {
    SessionOptions with = options;
    if (!ApplyPreset(preset.name, with).ok()) continue;
    if (with.training.optimizer == options.training.optimizer &&
        with.settings.push_codec == options.settings.push_codec &&
        with.settings.publish_codec == options.settings.publish_codec) {
      return preset.name;
    }
  }
  return {};
}

}  // namespace syncline
