// group_sim --start N --seeds M: runs M seeds from N on. Prints each seed that fails,
// with the command that repeats it. With --plant a seed must fail, because it has a
// planted fault.
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "tests/group_sim/gossip_simulation.h"
#include "tests/group_sim/group_simulation.h"

namespace syncline::group_sim {
namespace {

struct Options {
  uint64_t start = 1;
  uint64_t seeds = 1000;
  Fault fault = Fault::kNone;
  uint64_t found_by = 0;  // number of seeds that must find the planted fault
  bool gossip = false;
};

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--start", options.start, "first seed")->capture_default_str();
  app.add_option("--seeds", options.seeds, "how many seeds")->capture_default_str();
  static const std::map<std::string, Fault> kFaults = {{"deaf", Fault::kDeaf},
                                                       {"blame", Fault::kBlame},
                                                       {"hasty", Fault::kHasty},
                                                       {"corrupt", Fault::kCorrupt},
                                                       {"late", Fault::kLate}};
  app.add_option("--plant", options.fault, "a fault, which is to be found")
      ->transform(CLI::CheckedTransformer(kFaults));
  app.add_option("--found-by", options.found_by,
                 "ends well once so many seeds have found it, and badly without");
  app.add_flag("--gossip", options.gossip, "exchanges in pairs, instead of operations");
}

int Run(const Options& options, const char* program) {
  uint64_t failed = 0;
  uint64_t ran = 0;
  Tally tally;
  for (; ran < options.seeds; ++ran) {
    if (options.found_by > 0 && failed >= options.found_by) break;
    const auto seed = static_cast<unsigned long long>(options.start + ran);
    const absl::Status status = options.gossip
                                    ? SimulateGossip(seed, options.fault, tally)
                                    : Simulate(seed, options.fault, tally);
    if (status.ok()) continue;
    ++failed;
    std::printf("seed %llu failed: %s\n  repeat with: %s%s --start %llu --seeds 1\n",
                seed, std::string(status.message()).c_str(), program,
                options.gossip ? " --gossip" : "", seed);
    std::fflush(stdout);
  }
  const auto print = [](const char* what, uint64_t count) {
    std::printf("%s %llu", what, static_cast<unsigned long long>(count));
  };
  print("group_sim: seeds", ran);
  print(", failed", failed);
  print("; groups", tally.groups);
  print(", incidents", tally.incidents);
  print(", members that came back", tally.revived);
  print("; operations that ended well", tally.right);
  print(", with an error", tally.failed);
  std::printf("\n");
  const bool is_well = options.found_by > 0 ? failed >= options.found_by : failed == 0;
  return is_well ? 0 : 1;
}

}  // namespace
}  // namespace syncline::group_sim

int main(int argc, char** argv) {
  CLI::App app(
      "Simulates groups of ranks that call collective operations, one per seed.");
  syncline::group_sim::Options options;
  syncline::group_sim::AddOptions(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return syncline::group_sim::Run(options, argv[0]);
}
