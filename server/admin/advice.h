// The advisor's rules: what bounds a job, what to change, what that would bring at most, and
// how sure it is. Pure functions of what a step took of late (comm/base/step_phases.h).
//
//   for (const Advice& advice : Advise(figures)) …   // what takes most of a step first
//
// A rule answers nothing where what it looks for takes little of a step. docs/advise.md says
// what each of them goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/base/step_phases.h"

namespace syncline {

// Of one step, as means: `phases.steps` is 1.
struct WorkerFigures {
  uint32_t rank = 0;
  WorkerPhases phases = {};

  double total() const;
};
struct ServerFigures {
  uint32_t server = 0;
  ServerPhases phases = {};
};
struct JobFigures {
  std::string push_codec = {};
  std::string publish_codec = {};
  double compression = 1;     // FP32 bytes of gradients over bytes on the wire
  double bytes_per_step = 0;  // of a worker, both ways
  bool is_one_host = false;   // all servers have shared memory only: there is no wire
  std::vector<WorkerFigures> workers = {};
  std::vector<ServerFigures> servers = {};
  std::vector<uint32_t> without_a_step = {};  // ranks of which nothing is known
  double seconds = 0;  // in which these steps were seen: the longest of all workers

  // The longest step of a worker; 0 without workers.
  double step_seconds() const;
};

enum class JobBound {
  kCompute,
  kStraggler,
  kUplink,
  kDownlink,
  kServerCpu,
  kDecision,
  kFewServers,
  kCodec,
  kSmallSteps,
};
const char* BoundName(JobBound bound);  // "straggler"

struct Advice {
  JobBound bound = JobBound::kCompute;
  double share = 0;  // of a step that it takes
  double gain = 0;   // of a step that the change saves at most
  enum class Sure { kLittle, kFairly, kVery } sure = Sure::kFairly;
  std::string what = {};
  std::string change = {};
};
const char* SureName(Advice::Sure sure);  // "little"

using AdviceRule = std::optional<Advice> (*)(const JobFigures&);

std::optional<Advice> AdviseOnCompute(const JobFigures& job);
std::optional<Advice> AdviseOnStraggler(const JobFigures& job);
std::optional<Advice> AdviseOnUplink(const JobFigures& job);
std::optional<Advice> AdviseOnDownlink(const JobFigures& job);
std::optional<Advice> AdviseOnServerCpu(const JobFigures& job);
std::optional<Advice> AdviseOnDecision(const JobFigures& job);
std::optional<Advice> AdviseOnFewServers(const JobFigures& job);
std::optional<Advice> AdviseOnCodec(const JobFigures& job);
std::optional<Advice> AdviseOnSmallSteps(const JobFigures& job);

// All rules; the largest share first.
std::vector<Advice> Advise(const JobFigures& job);

}  // namespace syncline
