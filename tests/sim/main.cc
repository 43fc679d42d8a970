// sim --start N --seeds M: runs M seeds from N on. Prints each seed that fails, with the
// command that repeats it. With --plant a seed must fail, because it has a planted fault.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/sim/job_modes.h"
#include "tests/sim/simulation.h"
#include "tests/sim/stall_simulation.h"
#include "tests/sim/stopped_simulation.h"

namespace syncline::sim {
namespace {

// The kind of run that a seed draws.
struct Kind {
  std::string mode = "bsp";
  Restarts restarts = Restarts::kNone;

  std::string Flags() const {
    static const std::map<Restarts, std::string> kFlags = {
        {Restarts::kNone, ""},
        {Restarts::kCoordinator, " --restarts"},
        {Restarts::kServers, " --server-restarts"},
        {Restarts::kBoth, " --restarts --server-restarts"},
        {Restarts::kBackups, " --backups"},
        {Restarts::kTogether, " --backups --server-restarts"}};
    return "--mode " + mode + kFlags.at(restarts);
  }
};

// Returns all kinds of runs. Servers can restart in mode bsp only.
std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds;
  for (const char* mode : {"bsp", "ssp", "asp", "quorum"}) {
    for (const Restarts restarts : {Restarts::kNone, Restarts::kCoordinator}) {
      kinds.push_back({mode, restarts});
    }
  }
  for (const Restarts restarts :
       {Restarts::kServers, Restarts::kBoth, Restarts::kBackups, Restarts::kTogether}) {
    kinds.push_back({"bsp", restarts});
  }
  return kinds;
}

struct Options {
  uint64_t start = 1;
  uint64_t seeds = 1000;
  double seconds = 0;  // 0: all seeds
  Kind kind = {};
  bool all_kinds = false;
  Fault fault = Fault::kNone;
  uint64_t found_by = 0;  // number of seeds that must find the planted fault
};

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--start", options.start, "first seed")->capture_default_str();
  app.add_option("--seeds", options.seeds, "how many seeds")->capture_default_str();
  app.add_option("--seconds", options.seconds,
                 "the last seed begins before; 0: no limit");
  app.add_option("--mode", options.kind.mode, "of the jobs")
      ->check([](const std::string& given) {
        return IsMode(given) ? "" : "bsp, ssp, asp, quorum or bsp:quorum=K,grace_ms=MS";
      })
      ->capture_default_str();
  const auto add = [&](const char* flag, Restarts restarts, const char* meaning) {
    app.add_flag_callback(
        flag,
        [&options, restarts] {
          Restarts& drawn = options.kind.restarts;
          const bool has_backups =
              drawn == Restarts::kBackups || restarts == Restarts::kBackups;
          drawn = drawn == Restarts::kNone ? restarts
                  : has_backups            ? Restarts::kTogether
                                           : Restarts::kBoth;
        },
        meaning);
  };
  add("--restarts", Restarts::kCoordinator, "the coordinator dies and comes back, too");
  add("--server-restarts", Restarts::kServers,
      "servers die and come back with their journals, too");
  add("--backups", Restarts::kBackups, "servers die, and their backups take over");
  app.add_flag("--all", options.all_kinds,
               "each seed in all modes, with and without restarts");
  static const std::map<std::string, Fault> kFaults = {
      {"early", Fault::kPublishesEarly},
      {"unsynced-view", Fault::kPublishesUnsynced},
      {"generation", Fault::kStaleJournal},
      {"behind", Fault::kStepBehind},
      {"goes-on", Fault::kGoesOnAlone},
      {"whole-early", Fault::kWholeEarly},
      {"lost", Fault::kLosesRecord},
      {"stale", Fault::kStaleBackup},
      {"half", Fault::kHalfBackup},
      {"acks-on", Fault::kAcknowledgesOn},
      {"dedupe", Fault::kCountsAgain},
      {"fence", Fault::kNoFence},
      {"term", Fault::kOldTerm},
      {"ledger", Fault::kForgetsLedger},
      {"unsynced", Fault::kGoesOnUnsynced},
      {"prune", Fault::kPrunesEarly},
      {"passes", Fault::kPassesOver},
      {"staleness", Fault::kRunsAhead},
      {"age", Fault::kWrongWeight},
      {"deaf", Fault::kHearsNoLess},
      {"push-twice", Fault::kPushesTwice},
      {"view-twice", Fault::kViewsTwice},
      {"late-drop", Fault::kDropsLate}};
  app.add_option("--plant", options.fault, "a fault, which is to be found")
      ->transform(CLI::CheckedTransformer(kFaults));
  app.add_option("--found-by", options.found_by,
                 "ends well once so many seeds have found it, and badly without");
}

int Run(const Options& options, const char* program) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
        .count();
  };
  const std::vector<Kind> kinds =
      options.all_kinds ? AllKinds() : std::vector<Kind>{options.kind};
  uint64_t failed = 0;
  uint64_t ran = 0;
  for (; ran < options.seeds; ++ran) {
    if (options.seconds > 0 && seconds() >= options.seconds) break;
    if (options.found_by > 0 && failed >= options.found_by) break;
    const uint64_t seed = options.start + ran;
    for (const Kind& kind : kinds) {
      const bool drops_late = options.fault == Fault::kDropsLate;
      absl::Status status =
          drops_late ? SimulateStopped(seed, kind.mode, DropsSilent::kAfterFiveTimeouts)
                     : Simulate(seed, kind.mode, kind.restarts, options.fault);
      const bool stalls =
          kind.restarts == Restarts::kNone && options.fault == Fault::kNone;
      if (stalls) status.Update(SimulateStall(seed));
      if (stalls) status.Update(SimulateStopped(seed, kind.mode));
      if (status.ok()) continue;
      ++failed;
      std::printf("seed %llu failed: %s\n  repeat with: %s %s --start %llu --seeds 1\n",
                  static_cast<unsigned long long>(seed),
                  std::string(status.message()).c_str(), program, kind.Flags().c_str(),
                  static_cast<unsigned long long>(seed));
      std::fflush(stdout);
    }
  }
  std::printf("sim: %llu seeds from %llu on, %llu failed, %.1f s\n",
              static_cast<unsigned long long>(ran),
              static_cast<unsigned long long>(options.start),
              static_cast<unsigned long long>(failed), seconds());
  const bool is_well = options.found_by > 0 ? failed >= options.found_by : failed == 0;
  return is_well ? 0 : 1;
}

}  // namespace
}  // namespace syncline::sim

int main(int argc, char** argv) {
  CLI::App app(
      "Simulates whole training jobs, one per seed, under message faults and kills.");
  syncline::sim::Options options;
  syncline::sim::AddOptions(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return syncline::sim::Run(options, argv[0]);
}
