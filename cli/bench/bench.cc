#include "cli/bench/bench.h"

#include <memory>

#include "absl/status/status.h"
#include "cli/bench/aggregate.h"
#include "cli/bench/codec.h"
#include "cli/bench/collective.h"
#include "cli/bench/control.h"
#include "cli/bench/optimizer.h"
#include "cli/bench/pushpull.h"
#include "comm/base/failure.h"

namespace syncline {

void AddBench(CLI::App& app, Command* selected) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure parts of Syncline on this machine");
  bench->callback([bench, selected] {
    if (!bench->get_subcommands().empty()) return;
    *selected = [] {
      return WithFailure(absl::InvalidArgumentError(
                             "bench needs the name of a measurement: aggregate, codec, "
                             "collective, control, optimizer or pushpull"),
                         Failure::kUsage);
    };
  });
  AddBenchAggregate(*bench, selected);
  AddBenchCodec(*bench, selected);
  AddBenchCollective(*bench, selected);
  AddBenchControl(*bench, selected);
  AddBenchOptimizer(*bench, selected);
  AddBenchPushPull(*bench, selected);
}

}  // namespace syncline
