#include "tests/group_sim/plan.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "comm/collective/element/element.h"

namespace syncline::group_sim {

using collective::Algorithm;
using collective::CollectiveOp;
using collective::ElementType;
using collective::ReduceOp;

int Between(Random& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
}

bool OneIn(Random& random, int n) { return Between(random, 1, n) == 1; }

const char* TroubleName(Trouble trouble) {
  static const std::map<Trouble, const char*> kNames = {
      {Trouble::kKill, "is killed"},         {Trouble::kFreeze, "is frozen"},
      {Trouble::kPause, "pauses"},           {Trouble::kLeave, "leaves"},
      {Trouble::kAbsent, "does not come"},   {Trouble::kOddCall, "calls something else"},
      {Trouble::kCut, "is cut from another"}};
  return kNames.at(trouble);
}

Plan DrawPlan(Random& random) {
  Plan plan;
  plan.processes = Between(random, 2, 8);
  plan.epochs = Between(random, 3, 4);
  plan.failure_timeout = absl::Milliseconds(Between(random, 100, 400));
  plan.network.seed = random();
  plan.network.faults.min_delay = absl::Microseconds(5);
  plan.network.faults.max_delay = absl::Microseconds(Between(random, 10, 2000));
  // If a process dies together with its host, only its silence shows that.
  plan.network.failure_delay = OneIn(random, 3)
                                   ? absl::InfiniteDuration()
                                   : absl::Milliseconds(Between(random, 0, 50));
  if (OneIn(random, 4)) plan.bytes_per_second = 1e6 * Between(random, 20, 1000);
  return plan;
}

namespace {

size_t DrawCount(Random& random) {
  if (OneIn(random, 16)) {
    return static_cast<size_t>(Between(random, 1, 150'000));
  }
  if (OneIn(random, 3)) return static_cast<size_t>(Between(random, 0, 8000));
  return static_cast<size_t>(Between(random, 0, 70));
}

Operation DrawOperation(Random& random, const EpochPlan& epoch) {
  Operation drawn;
  drawn.op = static_cast<CollectiveOp>(
      Between(random, 0, static_cast<int>(CollectiveOp::kSendReceive)));
  if (OneIn(random, 3)) drawn.op = CollectiveOp::kAllReduce;
  drawn.type =
      static_cast<ElementType>(Between(random, 0, collective::kElementTypes - 1));
  drawn.reduce = static_cast<ReduceOp>(Between(random, 0, collective::kReduceOps - 1));
  if (!collective::IsDefined(drawn.type, drawn.reduce)) drawn.reduce = ReduceOp::kSum;
  drawn.count = DrawCount(random);
  drawn.root = Between(random, 0, epoch.ranks - 1);
  drawn.source = (drawn.root + Between(random, 1, epoch.ranks - 1)) % epoch.ranks;
  drawn.salt = random();
  if (drawn.op == CollectiveOp::kAllToAll && OneIn(random, 2)) {
    for (int from = 0; from < epoch.ranks; ++from) {
      drawn.counts.emplace_back();
      for (int to = 0; to < epoch.ranks; ++to) {
        drawn.counts.back().push_back(static_cast<size_t>(Between(random, 0, 900)));
      }
    }
  }
  const bool rounds = collective::RoundsPartials(drawn.type);
  collective::Problem problem = {
      .op = drawn.op,
      .ranks = epoch.ranks,
      .count = drawn.count,
      .local = epoch.local,
      .exact = epoch.exact_order && collective::Reduces(drawn.op) &&
               collective::OrderMatters(drawn.type, drawn.reduce),
      .rounds = rounds};
  if (!drawn.counts.empty()) problem.send_counts = drawn.counts.front();
  const auto wish = static_cast<size_t>(
      Between(random, 0, static_cast<int>(std::size(collective::kAllAlgorithms)) - 1));
  const Algorithm algorithm = collective::kAllAlgorithms[wish];
  if (collective::Supports(algorithm, problem)) drawn.algorithm = algorithm;
  return drawn;
}

Incident DrawIncident(Random& random, const Plan& plan, const EpochPlan& epoch) {
  // Kills are the most frequent ones.
  static constexpr Trouble kTroubles[] = {
      Trouble::kKill,   Trouble::kKill,    Trouble::kKill,  Trouble::kFreeze,
      Trouble::kFreeze, Trouble::kPause,   Trouble::kPause, Trouble::kLeave,
      Trouble::kAbsent, Trouble::kOddCall, Trouble::kCut};
  const auto one =
      static_cast<size_t>(Between(random, 0, static_cast<int>(std::size(kTroubles)) - 1));
  const int operations = static_cast<int>(epoch.operations.size());
  Incident drawn = {.trouble = kTroubles[one],
                    .rank = Between(random, 0, epoch.ranks - 1),
                    .before = static_cast<size_t>(Between(random, 1, operations)),
                    .turns = OneIn(random, 3) ? 0 : Between(random, 0, 12)};
  drawn.other = (drawn.rank + Between(random, 1, epoch.ranks - 1)) % epoch.ranks;
  const double share = drawn.trouble == Trouble::kPause
                           ? 0.01 * Between(random, 1, 60)
                           : 0.01 * Between(random, 150, 700);
  if (drawn.trouble == Trouble::kPause || drawn.trouble == Trouble::kFreeze) {
    drawn.length = plan.failure_timeout * share;
  }
  return drawn;
}

}  // namespace

EpochPlan DrawEpoch(Random& random, const Plan& plan, int ranks, bool is_last) {
  const absl::Duration f = plan.failure_timeout;
  EpochPlan epoch;
  epoch.ranks = ranks;
  epoch.local = ranks % 2 == 0 && OneIn(random, 2) ? 2 : 1;
  if (OneIn(random, 4)) epoch.local = ranks;
  epoch.hosts = ranks / epoch.local;
  epoch.exact_order = OneIn(random, 4);
  epoch.depth = OneIn(random, 2) ? 1 : Between(random, 2, 4);
  epoch.timeout = 1000 * f;
  epoch.most_compute = OneIn(random, 4) ? 2 * f : absl::Milliseconds(2);
  epoch.leaves_at_once = OneIn(random, 2);
  // Group::Create also waits for all ranks first.
  epoch.operations.push_back({.op = CollectiveOp::kBarrier});
  for (int i = Between(random, 2, 10); i > 0; --i) {
    epoch.operations.push_back(DrawOperation(random, epoch));
  }
  for (int i = is_last ? 0 : Between(random, 0, 2); i > 0; --i) {
    epoch.incidents.push_back(DrawIncident(random, plan, epoch));
  }
  const auto is_absent = [](const Incident& incident) {
    return incident.trouble == Trouble::kAbsent;
  };
  if (std::any_of(epoch.incidents.begin(), epoch.incidents.end(), is_absent)) {
    // These are found at the deadline. Ranks that are only slow must not reach it.
    epoch.timeout = 6 * f;
    epoch.most_compute = absl::Milliseconds(2);
    for (Operation& operation : epoch.operations) {
      operation.count = std::min<size_t>(operation.count, 20'000);
    }
  }
  return epoch;
}

}  // namespace syncline::group_sim
