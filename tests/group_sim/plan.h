// What a seed draws: how many processes, what their groups call, and what happens to them.
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

// From low to high, both included.
int Between(Random& random, int low, int high);
bool OneIn(Random& random, int n);

enum class Trouble {
  kKill,     // its process ends, between any two things that it does
  kFreeze,   // stands still for longer than F, and goes on
  kPause,    // stands still for 0.6 F at most: nobody may take it for dead
  kLeave,    // ends its group
  kAbsent,   // lives, and does not call the operation
  kOddCall,  // calls another one
  kCut,      // the network between it and another rank is cut
};
const char* TroubleName(Trouble trouble);

struct Incident {
  Trouble trouble = Trouble::kKill;
  int rank = 0;
  int other = 0;      // of kCut
  size_t before = 0;  // operations that it has begun when it happens
  int turns = 0;      // and what it has done since
  absl::Duration length = absl::ZeroDuration();  // of kFreeze and kPause
};

// One epoch of a group: what all ranks call, and what comes in between.
struct EpochPlan {
  int ranks = 2;
  int hosts = 1;
  int local = 1;
  bool exact_order = false;
  std::vector<Operation> operations;
  std::vector<Incident> incidents;
  int depth = 1;  // operations under way at once
  absl::Duration timeout = {};
  absl::Duration most_compute = {};  // between operations
  bool leaves_at_once = false;  // whoever has failed says goodbye before the others have
};

struct Plan {
  int processes = 2;
  int epochs = 4;  // nothing happens in the last one
  absl::Duration failure_timeout = {};
  InprocOptions network;
  double bytes_per_second = 0;  // of each pair; 0: no limit
};

Plan DrawPlan(Random& random);
EpochPlan DrawEpoch(Random& random, const Plan& plan, int ranks, bool is_last);

}  // namespace syncline::group_sim
