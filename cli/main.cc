// The main function of `syncline`. Each subcommand is one file of this folder and one
// line here.

#include "absl/synchronization/mutex.h"
#include "cli/advise.h"
#include "cli/app.h"
#include "cli/bench/bench.h"
#include "cli/certs.h"
#include "cli/checkpoint.h"
#include "cli/completion.h"
#include "cli/diagnose.h"
#include "cli/doctor.h"
#include "cli/drain.h"
#include "cli/events.h"
#include "cli/lr_range.h"
#include "cli/plan.h"
#include "cli/replay.h"
#include "cli/run.h"
#include "cli/serve.h"
#include "cli/status.h"
#include "cli/top.h"
#include "cli/trace.h"
#include "cli/update.h"
#include "cli/version.h"
#include "comm/rpc/channel.h"

int main(int argc, char** argv) {
  syncline::SilenceGrpcLog();
  // Distributions build abseil with deadlock detection, which follows the order of all
  // locks. It costs 40 % of a coordinator's time with 10,000 members. In tests,
  // sanitizers do this.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  constexpr syncline::AddCommand kCommands[] = {
      syncline::AddServe,      syncline::AddRun,    syncline::AddLrRange,
      syncline::AddStatus,     syncline::AddTop,    syncline::AddUpdate,
      syncline::AddCheckpoint, syncline::AddPlan,   syncline::AddDoctor,
      syncline::AddBench,      syncline::AddCerts,  syncline::AddVersion,
      syncline::AddReplay,     syncline::AddAdvise, syncline::AddTrace,
      syncline::AddDrain,      syncline::AddEvents, syncline::AddDiagnose,
      syncline::AddCompletion,
  };
  return syncline::RunApp({argv, argv + argc}, kCommands);
}
