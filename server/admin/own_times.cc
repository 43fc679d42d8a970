#include "server/admin/own_times.h"

#include <cmath>
#include <utility>

#include "comm/base/step_phases.h"

namespace syncline {
namespace {

double OwnSeconds(const WorkerPhases& phases) {
  return phases[WorkerPhase::kCompute] + phases[WorkerPhase::kEncode] +
         phases[WorkerPhase::kPush] + phases[WorkerPhase::kDecode];
}

}  // namespace

void OwnTimes::Add(const std::vector<MemberView>& members) {
  std::map<uint32_t, Worker> before = std::exchange(workers_, {});
  for (const MemberView& member : members) {
    const WorkerPhases& phases = member.phases;
    if (member.rank >= kRanks || phases.steps == 0) continue;
    const double seconds = OwnSeconds(phases);
    Worker& worker = workers_[member.rank];
    const auto known = before.find(member.rank);
    const bool goes_on = known != before.end() &&
                         known->second.incarnation == member.incarnation &&
                         known->second.steps <= phases.steps;
    if (goes_on) {
      worker = std::move(known->second);
    } else {
      worker = {member.incarnation, phases.steps, seconds};
    }
    if (phases.steps == worker.steps) continue;
    const double of_a_step =
        (seconds - worker.seconds) / static_cast<double>(phases.steps - worker.steps);
    worker.points.push_back(std::round(of_a_step * 1e6) / 1e6);
    if (worker.points.size() > kPoints) worker.points.pop_front();
    worker.steps = phases.steps;
    worker.seconds = seconds;
  }
}

}  // namespace syncline
