#include "worker/examples/fashion_mnist/flags.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

namespace syncline::fashion_mnist {
namespace {

constexpr int kUsageError = 2;

constexpr int64_t kMinBatchSize = 2;  // what BatchPlan needs
constexpr int64_t kMaxBatchSize = 4096;

// Several "name=number" into `values`, which keep what is not named.
void AddOptions(CLI::App& app, const std::string& flag, OptionValues& values,
                const std::string& what) {
  app.add_option_function<std::vector<std::string>>(
         flag,
         [flag, &values](const std::vector<std::string>& assignments) {
           const auto parsed = ParseOptions(assignments);
           if (!parsed.ok()) {
             throw CLI::ValidationError(flag, std::string(parsed.status().message()));
           }
           values = Merge(values, *parsed);
         },
         what)
      ->type_name("NAME=NUMBER");
}

void AddOptimizerFlags(CLI::App& app, OptimizerSettings& settings) {
  app.add_option_function<std::string>(
         "--optimizer",
         [&settings](const std::string& name) {
           if (name != settings.optimizer.name) settings.optimizer = {.name = name};
         },
         "adamw, sgd, lamb, lion, adafactor, ...; the servers know them all")
      ->trigger_on_parse()
      ->default_str("adamw");
  AddOptions(app, "--option", settings.optimizer.values,
             "Options of the optimizer, after --optimizer");
  app.add_option("--schedule", settings.schedule.name, "Of the learning rate")
      ->capture_default_str();
  AddOptions(app, "--schedule-option", settings.schedule.values,
             "Options of the schedule");
  AddOptions(app, "--gradient-option", settings.gradient,
             "Gradient transforms, such as clip_global_norm=1");
}

void AddTrainFlags(CLI::App& app, TrainFlags& flags) {
  const std::map<std::string, Precision> precisions = {{"fp32", Precision::kFp32},
                                                       {"bf16", Precision::kBf16}};
  app.add_option("--epochs", flags.epochs, "Passes over the training images")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--batch-size", flags.batch_size,
                 "Samples per worker and step; four times as many in the last epochs")
      ->check(CLI::Range(kMinBatchSize, kMaxBatchSize))
      ->capture_default_str();
  app.add_option("--steps", flags.max_steps, "Stop after so many steps (0: never)")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--precision", flags.precision,
         "fp32, or bf16: autocast here, where the hardware has it, and BF16 on the wire; "
         "weights stay FP32")
      ->transform(CLI::CheckedTransformer(precisions))
      ->default_str("fp32");
  app.add_option(
      "--push-codec", flags.push_codec,
      "How gradients travel, such as onebit or topk:ratio=0.01 (the precision)");
  app.add_option("--publish-codec", flags.publish_codec,
                 "How weights travel (the precision)");
  app.add_option("--eval-steps", flags.eval_steps,
                 "Test after so many steps again and again; the report has the results")
      ->check(CLI::NonNegativeNumber);
  AddOptimizerFlags(app, flags.optimizer);
  app.add_option("--seed", flags.seed, "Of the initial weights and the order of samples")
      ->capture_default_str();
  app.add_option("--threads", flags.threads, "CPU threads of LibTorch")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--hidden", flags.hidden,
                 "Units of the first full layer: 256 make 0.8 million parameters, 8000 "
                 "make 25")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--data-dir", flags.data_dir, "Where the Fashion-MNIST files are")
      ->capture_default_str();
  app.add_option("--report", flags.report,
                 "Write the figures of the run to this JSON file");
  app.add_option("--name", flags.name, "Name of the run in the report (the precision)");
}

}  // namespace

Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "Trains a convolutional network on Fashion-MNIST as a worker of a Syncline job.\n"
      "Start it with: syncline run --standalone --servers 2 --nproc-per-node 4 -- "
      "fashion_mnist");
  AddTrainFlags(app, flags.train);
  app.add_flag_callback(
      "--local", [&flags] { flags.command = Command::kTrainLocally; },
      "Train alone with torch's optimizer: no servers, no job");
  CLI::App* summarize = app.add_subcommand(
      "summarize", "Print a table of reports and write them to one file");
  summarize->add_option("reports", flags.summarize.reports, "Files that --report wrote")
      ->required();
  summarize->add_option("--out", flags.summarize.out,
                        "Write all of them to this JSON file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    flags.command = Command::kExit;
    flags.exit_code = app.exit(error) == 0 ? 0 : kUsageError;
    return flags;
  }
  if (summarize->parsed()) flags.command = Command::kSummarize;
  const std::string& optimizer = flags.train.optimizer.optimizer.name;
  if (flags.command == Command::kTrainLocally && optimizer != "adamw" &&
      optimizer != "sgd") {
    std::cerr << "--local knows adamw and sgd, not " << optimizer << "\n";
    flags.command = Command::kExit;
    flags.exit_code = kUsageError;
  }
  if (flags.train.name.empty()) flags.train.name = Name(flags.train.precision);
  for (std::string* codec : {&flags.train.push_codec, &flags.train.publish_codec}) {
    if (codec->empty()) *codec = Name(flags.train.precision);
  }
  return flags;
}

const char* Name(Precision precision) {
  return precision == Precision::kBf16 ? "bf16" : "fp32";
}

}  // namespace syncline::fashion_mnist
