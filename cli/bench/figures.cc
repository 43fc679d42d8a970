#include "cli/bench/figures.h"

#include <algorithm>
#include <cmath>

#include "comm/base/check.h"
#include "comm/base/machine.h"

namespace syncline {

nlohmann::json Quantiles(std::vector<double> samples) {
  SYNCLINE_CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double q) {
    const double position = q * static_cast<double>(samples.size() - 1);
    const size_t low = static_cast<size_t>(position);
    const size_t high = std::min(low + 1, samples.size() - 1);
    return std::lerp(samples[low], samples[high], position - static_cast<double>(low));
  };
  return {{"median", at(0.5)}, {"p10", at(0.1)}, {"p90", at(0.9)}};
}

nlohmann::json MachineFigures() {
  const MachineInfo machine = MeasureMachine();
  return {{"cores", machine.cores}, {"isa", machine.isa}, {"copy_gbs", machine.copy_gbs}};
}

}  // namespace syncline
