#include "worker/examples/fashion_mnist/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace syncline::fashion_mnist {
namespace {

using ::testing::ElementsAre;

Flags Parse(std::vector<std::string> arguments) {
  std::vector<char*> argv = {const_cast<char*>("fashion_mnist")};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return ParseFlags(static_cast<int>(argv.size()), argv.data());
}

TEST(Flags, TrainInAJobByDefault) {
  const Flags flags = Parse({});
  EXPECT_EQ(flags.command, Command::kTrainInJob);
  EXPECT_EQ(flags.train.precision, Precision::kFp32);
  EXPECT_EQ(flags.train.name, "fp32");
  EXPECT_EQ(flags.train.push_codec, "fp32");
  EXPECT_EQ(flags.train.publish_codec, "fp32");
}

TEST(Flags, GradientsAndWeightsTravelAsTold) {
  const Flags flags = Parse(
      {"--precision", "bf16", "--push-codec", "topk:ratio=0.01", "--eval-steps", "50"});
  EXPECT_EQ(flags.train.push_codec, "topk:ratio=0.01");
  EXPECT_EQ(flags.train.publish_codec, "bf16");
  EXPECT_EQ(flags.train.eval_steps, 50);
}

TEST(Flags, ReadsThemAll) {
  const Flags flags = Parse({"--precision",
                             "bf16",
                             "--epochs",
                             "2",
                             "--batch-size",
                             "8",
                             "--steps",
                             "7",
                             "--optimizer",
                             "lion",
                             "--option",
                             "lr=0.5",
                             "weight_decay=0",
                             "--schedule",
                             "cosine",
                             "--schedule-option",
                             "total_steps=9",
                             "--seed",
                             "9",
                             "--threads",
                             "2",
                             "--hidden",
                             "80",
                             "--data-dir",
                             "d",
                             "--report",
                             "r.json",
                             "--name",
                             "mine"});
  EXPECT_EQ(flags.command, Command::kTrainInJob);
  EXPECT_EQ(flags.train.precision, Precision::kBf16);
  EXPECT_EQ(flags.train.epochs, 2);
  EXPECT_EQ(flags.train.batch_size, 8);
  EXPECT_EQ(flags.train.max_steps, 7);
  EXPECT_EQ(flags.train.optimizer.optimizer,
            (NamedOptions{"lion", {{"lr", 0.5}, {"weight_decay", 0}}}));
  EXPECT_EQ(flags.train.optimizer.schedule,
            (NamedOptions{"cosine", {{"total_steps", 9}}}));
  EXPECT_EQ(flags.train.seed, 9u);
  EXPECT_EQ(flags.train.threads, 2);
  EXPECT_EQ(flags.train.hidden, 80);
  EXPECT_EQ(flags.train.data_dir, "d");
  EXPECT_EQ(flags.train.report, "r.json");
  EXPECT_EQ(flags.train.name, "mine");
}

TEST(Flags, SummarizesReports) {
  const Flags flags = Parse({"summarize", "a.json", "b.json", "--out", "c.json"});
  EXPECT_EQ(flags.command, Command::kSummarize);
  EXPECT_THAT(flags.summarize.reports, ElementsAre("a.json", "b.json"));
  EXPECT_EQ(flags.summarize.out, "c.json");
}

TEST(Flags, BadOnesExitWithTwo) {
  const std::vector<std::vector<std::string>> bad = {{"--bogus"},
                                                     {"--precision", "fp8"},
                                                     {"--batch-size", "1"},
                                                     {"--epochs", "0"},
                                                     {"--option", "lr"},
                                                     {"--steps", "-1"},
                                                     {"--threads", "0"},
                                                     {"--hidden", "0"},
                                                     {"stray"},
                                                     {"--local", "--optimizer", "lamb"},
                                                     {"summarize"},
                                                     {"--seed", "x"}};
  for (const auto& arguments : bad) {
    const Flags flags = Parse(arguments);
    EXPECT_EQ(flags.command, Command::kExit) << arguments.front();
    EXPECT_EQ(flags.exit_code, 2) << arguments.front();
  }
}

TEST(Flags, HelpExitsWithZero) {
  const Flags flags = Parse({"--help"});
  EXPECT_EQ(flags.command, Command::kExit);
  EXPECT_EQ(flags.exit_code, 0);
}

}  // namespace
}  // namespace syncline::fashion_mnist
