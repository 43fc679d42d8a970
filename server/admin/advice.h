// The rules of the advisor: what limits the speed of a job, what to change, how much that
// saves at most, and how certain that is. They are pure functions of what recent steps
// took (comm/base/step_phases.h).
//
//   for (const Advice& advice : Advise(figures)) …   // the largest share first
//
// A rule returns nothing if its subject takes only a small part of a step. docs/advise.md
// describes what each rule looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/base/step_phases.h"

namespace syncline {

// Mean times of one step: `phases.steps` is 1.
struct WorkerFigures {
  uint32_t rank = 0;
  WorkerPhases phases = {};
  // Speeds of its links to other hosts, measured while they were busy. 0: unknown.
  double sent_bytes_per_second = 0;
  double received_bytes_per_second = 0;

  double total() const;
};
struct ServerFigures {
  uint32_t server = 0;
  ServerPhases phases = {};
};
struct JobFigures {
  std::string push_codec = {};
  std::string publish_codec = {};
  double compression = 1;            // FP32 bytes of gradients over bytes on the wire
  double bytes_per_step = 0;         // of one worker, both ways
  double pushed_bytes_per_step = 0;  // of these, the way up; 0: unknown
  bool is_one_host = false;  // all servers use shared memory only: there is no network
  std::vector<WorkerFigures> workers = {};
  std::vector<ServerFigures> servers = {};
  std::vector<uint32_t> without_a_step = {};  // ranks that made no step recently
  // Time in which these steps were seen: the longest of all workers.
  double seconds = 0;

  // Returns the longest step of a worker, or 0 without workers.
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
  double share = 0;  // part of a step that it takes, from 0 to 1
  double gain = 0;   // part of a step that the change saves at most
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

// Applies all rules. Returns the largest share first.
std::vector<Advice> Advise(const JobFigures& job);

}  // namespace syncline
