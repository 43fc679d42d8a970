// sim --start N --seeds M: runs M seeds from N on; a seed that fails is printed with the
// command that repeats it.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "tests/sim/job_modes.h"
#include "tests/sim/simulation.h"
#include "tests/sim/stall_simulation.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Simulates whole training jobs, one per seed, under message faults and kills.");
  uint64_t start = 1;
  uint64_t seeds = 1000;
  app.add_option("--start", start, "first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "how many seeds")->capture_default_str();
  std::string mode = "bsp";
  app.add_option("--mode", mode, "of the jobs")
      ->check([](const std::string& given) {
        return syncline::sim::IsMode(given)
                   ? ""
                   : "bsp, ssp, asp, quorum or bsp:quorum=K,grace_ms=MS";
      })
      ->capture_default_str();
  bool restarts = false;
  app.add_flag("--restarts", restarts, "the coordinator dies and comes back, too");
  bool server_restarts = false;
  app.add_flag("--server-restarts", server_restarts,
               "servers die and come back with their journals, too");
  bool backups = false;
  app.add_flag("--backups", backups, "servers die, and their backups take over");
  using syncline::sim::Fault;
  Fault fault = Fault::kNone;
  const std::map<std::string, Fault> faults = {{"early", Fault::kPublishesEarly},
                                               {"lost", Fault::kLosesRecord},
                                               {"stale", Fault::kStaleBackup},
                                               {"half", Fault::kHalfBackup}};
  app.add_option("--plant", fault, "a fault of backups, which is to be found")
      ->transform(CLI::CheckedTransformer(faults));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  uint64_t failed = 0;
  for (uint64_t seed = start; seed < start + seeds; ++seed) {
    using syncline::sim::Restarts;
    const Restarts drawn = backups                       ? Restarts::kBackups
                           : restarts && server_restarts ? Restarts::kBoth
                           : restarts                    ? Restarts::kCoordinator
                           : server_restarts             ? Restarts::kServers
                                                         : Restarts::kNone;
    absl::Status status = syncline::sim::Simulate(seed, mode, drawn, fault);
    if (drawn == Restarts::kNone) status.Update(syncline::sim::SimulateStall(seed));
    if (status.ok()) continue;
    ++failed;
    std::printf(
        "seed %llu failed: %s\n  repeat with: %s --mode %s%s%s%s --start %llu --seeds "
        "1\n",
        static_cast<unsigned long long>(seed), std::string(status.message()).c_str(),
        argv[0], mode.c_str(), restarts ? " --restarts" : "",
        server_restarts ? " --server-restarts" : "", backups ? " --backups" : "",
        static_cast<unsigned long long>(seed));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("sim: %llu seeds, %llu failed, %.1f s\n",
              static_cast<unsigned long long>(seeds),
              static_cast<unsigned long long>(failed), took.count());
  return failed == 0 ? 0 : 1;
}
