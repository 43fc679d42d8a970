#include "worker/client/presets.h"

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
};

constexpr std::string_view kNesterov = "sgd:lr=0.7,momentum=0.9,nesterov=1";

// worker/python/src/syncline/torch/_presets.py has the same, with its rounds.
constexpr std::array kPresets = {
    // Douillard et al. 2023, arXiv 2311.08105.
    Preset{.name = "diloco", .optimizer = kNesterov},
    // Douillard et al. 2025, arXiv 2501.18512: 4 bits up.
    Preset{.name = "streaming-diloco",
           .optimizer = kNesterov,
           .push = "int4",
           .publish = "int8"},
    // Sarfi et al. 2025, arXiv 2508.15706. Down go the values of two workers.
    Preset{.name = "sparseloco",
           .optimizer = "sgd:lr=1",
           .push = "sparseloco",
           .publish = "sparseloco:ratio=0.03125"},
    // Lin et al. 2018, arXiv 1808.07217.
    Preset{.name = "post-local-sgd", .optimizer = "sgd:lr=1"},
};

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
      absl::StrCat("'", std::string(name), "' is no preset; there are ",
                   absl::StrJoin(written, ", "), DidYouMean(name, names)));
}

// worker/python/src/syncline/torch/_decoupled.py has the same reasons.
absl::Status CheckRounds(const SessionOptions& options) {
  const std::string& mode = options.training.mode.name;
  if (options.preset.empty() || (mode != "asp" && mode != "ssp")) return absl::OkStatus();
  const char* why =
      mode == "asp"
          ? "takes each worker's push for an outer step of its own, at the full rate, "
            "where a round is one step of the mean of all: with W workers the weights "
            "would go W times as far"
          : "lets a worker go on with weights that lack its own last round, and they "
            "would take the place of what it trained since";
  return absl::InvalidArgumentError(absl::StrCat(
      "preset=", options.preset, " with mode=", FormatNamedOptions(options.training.mode),
      ", which ", why,
      "; take bsp, or bsp:quorum=K, which waits for K workers (docs/local_sgd.md)"));
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
