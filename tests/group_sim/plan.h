// The plan that a seed draws: the number of processes, the operations of their groups,
// and the incidents.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/transport/inproc/inproc.h"
#include "tests/group_sim/operation.h"

namespace syncline::group_sim {

using Random = std::mt19937_64;

// Returns a number from low to high, both included.
int Between(Random& random, int low, int high);
bool OneIn(Random& random, int n);

enum class Trouble {
  kKill,     // its process ends, between any two actions
  kFreeze,   // it stands still for longer than F, and continues
  kPause,    // it stands still for at most 0.6 F, and must not be considered dead
  kLeave,    // it ends its group
  kAbsent,   // it lives, and does not call the operation
  kOddCall,  // it calls another operation
  kCut,      // the network between it and another rank is cut
};
const char* TroubleName(Trouble trouble);

struct Incident {
  Trouble trouble = Trouble::kKill;
  int rank = 0;
  int other = 0;      // kCut: the other rank
  size_t before = 0;  // number of operations that the rank has begun by then
  int turns = 0;      // number of turns since then
  absl::Duration length = absl::ZeroDuration();  // kFreeze and kPause
};

// One epoch of a group: the operations that all ranks call, and the incidents.
struct EpochPlan {
  int ranks = 2;
  int hosts = 1;
  int local = 1;
  bool exact_order = false;
  std::vector<Operation> operations;
  std::vector<Incident> incidents;
  int depth = 1;  // maximum number of operations under way
  absl::Duration timeout = {};
  absl::Duration most_compute = {};  // between operations
  bool leaves_at_once = false;  // a rank that has failed leaves before the others fail
};

struct Plan {
  int processes = 2;
  int epochs = 4;  // nothing happens in the last one
  absl::Duration failure_timeout = {};
  InprocOptions network;
  double bytes_per_second = 0;  // speed between each pair; 0: no limit
};

Plan DrawPlan(Random& random);
EpochPlan DrawEpoch(Random& random, const Plan& plan, int ranks, bool is_last);

}  // namespace syncline::group_sim
