#include "comm/base/status.h"
#include "server/optimizer/adamw.h"
#include "server/optimizer/optimizer.h"
#include "server/optimizer/sgd.h"

namespace syncline {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerSettings&);
};
constexpr Entry kOptimizers[] = {{"sgd", MakeSgd}, {"adamw", MakeAdamW}};
constexpr std::string_view kNames[] = {kOptimizers[0].name, kOptimizers[1].name};
static_assert(std::size(kNames) == std::size(kOptimizers));

}  // namespace

std::span<const std::string_view> OptimizerNames() { return kNames; }

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(
    const OptimizerSettings& settings) {
  SYNCLINE_RETURN_IF_ERROR(ValidateSettings(settings));
  for (const Entry& entry : kOptimizers) {
    if (entry.name == settings.name) return entry.make(settings);
  }
  return absl::InternalError("an optimizer name passed validation but has no factory");
}

}  // namespace syncline
