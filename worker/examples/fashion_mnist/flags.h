// The command line of the example.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/examples/fashion_mnist/dataset.h"
#include "worker/examples/fashion_mnist/model.h"
#include "worker/examples/fashion_mnist/optimizer_settings.h"

namespace syncline::fashion_mnist {

struct TrainFlags {
  int64_t epochs = 5;
  int64_t batch_size = 64;  // of one worker
  int64_t max_steps = 0;    // 0: all steps of the epochs
  Precision precision = Precision::kFp32;
  std::string push_codec;     // of gradients; empty: the precision
  std::string publish_codec;  // of weights; empty: the precision
  int64_t eval_steps = 0;     // test after so many steps again and again; 0: at the end
  OptimizerSettings optimizer;
  uint64_t seed = 1;
  int threads = 1;
  int64_t hidden = 256;
  std::string data_dir = kDefaultDataDir;
  std::string report;  // where the JSON goes, with the rank appended; empty: nowhere
  std::string name;    // of the run in the report; empty: the precision
};

struct SummarizeFlags {
  std::vector<std::string> reports;
  std::string out;
};

enum class Command { kTrainInJob, kTrainLocally, kSummarize, kExit };

struct Flags {
  Command command = Command::kTrainInJob;
  TrainFlags train;
  SummarizeFlags summarize;
  int exit_code =
      0;  // of kExit: 0 after --help, 2 after a bad flag; all is printed already
};

Flags ParseFlags(int argc, char** argv);

const char* Name(Precision precision);

}  // namespace syncline::fashion_mnist
