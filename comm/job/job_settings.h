// What all workers of a job say alike, beside its tensors and its training: one struct, and
// one table from which the rest follows.
//
//   JobSettings settings;
//   SYNCLINE_RETURN_IF_ERROR(
//       SetJobSetting(*FindJobSetting("durability"), "disk", settings));
//
// From a row follow: the option of C and Python, the key of job files, the flag of
// `syncline run` and its variable (VariableOf), the field of the message
// (comm/rpc/job_settings_proto.h), what is allowed, the comparison of what two workers say,
// and docs/settings.md.
//
// A new setting is a member with its row, both here, and the field in
// proto/coordinator.proto. What it must agree on with others is for ValidateJob
// (server/coordinator/job_spec.h).
//
// Thread safety: plain values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "comm/job/answers.h"
#include "comm/job/checkpoint_every.h"
#include "comm/job/checkpoint_name.h"
#include "comm/job/goals.h"

namespace syncline {

struct JobSettings {
  std::string push_codec = "bf16";  // of gradients
  std::string publish_codec = "bf16";
  CheckpointEvery checkpoint_every = {};
  uint32_t checkpoint_keep = 3;
  std::string resume = "auto";
  std::string durability = "none";
  std::string goals = "none";    // goals.h
  std::string answers = "none";  // answers.h

  bool operator==(const JobSettings&) const = default;
};

// By whom it is said. What operators may decide is a flag of `syncline run`, which reaches programs
// as a variable; a program that says it itself is right.
enum class SaidBy { kProgramOrLauncher, kProgram };

// One row. What is not said of a value is not checked.
struct JobSetting {
  std::string_view name = {};  // in messages to people and job files
  // REQUIRES: of type string a default that is not empty, of type uint32_t one that is not
  // 0: what a message does not say is the default.
  std::variant<std::string JobSettings::*, uint32_t JobSettings::*,
               CheckpointEvery JobSettings::*>
      member = {};
  std::string_view option = name;  // what C and Python call it
  std::string_view field = name;   // of v1::JobSpec: "checkpoint.keep" lies in a message
  SaidBy said_by = SaidBy::kProgramOrLauncher;
  std::string_view meaning = {};

  // What is allowed: of a number...
  uint32_t least = 0;
  uint32_t most = UINT32_MAX;
  // ... and of a string: one of these, if there are any; what the function, if there is one,
  // says OK to, in the manner of CheckJobSettings.
  std::span<const std::string_view> words = {};
  absl::Status (*check)(const std::string& value) = nullptr;
  // Makes strings equal that mean the same; null: only equal ones do.
  std::string (*canonical)(std::string_view value) = nullptr;
};

absl::Status CheckPushCodec(const std::string& codec);
absl::Status CheckPublishCodec(const std::string& codec);
std::string CanonicalCodecs(std::string_view codec);
absl::Status CheckGoals(const std::string& goals);
absl::Status CheckAnswers(const std::string& answers);

inline constexpr std::array<std::string_view, 4> kDurabilities = {"none", "disk", "peer",
                                                                  "disk+peer"};

inline constexpr std::array kJobSettings = {
    JobSetting{.name = "push_codec",
               .member = &JobSettings::push_codec,
               .option = "push",
               .said_by = SaidBy::kProgram,
               .meaning = "how gradients travel: a codec, or rules of codecs by the "
                          "names of tensors",
               .check = CheckPushCodec,
               .canonical = CanonicalCodecs},
    JobSetting{.name = "publish_codec",
               .member = &JobSettings::publish_codec,
               .option = "publish",
               .said_by = SaidBy::kProgram,
               .meaning = "how weights travel, likewise",
               .check = CheckPublishCodec,
               .canonical = CanonicalCodecs},
    JobSetting{.name = "checkpoint_every",
               .member = &JobSettings::checkpoint_every,
               .field = "checkpoint.every",
               .meaning = "when the job is saved: '500 steps' or '10 min'"},
    JobSetting{.name = "checkpoint_keep",
               .member = &JobSettings::checkpoint_keep,
               .field = "checkpoint.keep",
               .meaning = "how many checkpoints stay",
               .least = 1,
               .most = 10000},
    JobSetting{.name = "resume",
               .member = &JobSettings::resume,
               .field = "checkpoint.resume",
               .meaning = "what the job begins with: auto (the latest checkpoint, if "
                          "there is one), latest, never, or a checkpoint's name",
               .check = CheckResume},
    JobSetting{.name = "durability",
               .member = &JobSettings::durability,
               .meaning = "what outlives servers: disk: they journal each step "
                          "(--journal-dir); peer: each has a backup in another one's "
                          "memory; disk+peer: both",
               .words = kDurabilities},
    JobSetting{.name = "goals",
               .member = &JobSettings::goals,
               .meaning = "what the job is meant to reach: samples_per_s>=N, "
                          "step_p95_ms<=N, participation>=N, wire_mb_per_step<=N, "
                          "budget=SHARE (docs/goals.md)",
               .check = CheckGoals,
               .canonical = CanonicalGoals},
    JobSetting{.name = "answers",
               .member = &JobSettings::answers,
               .meaning = "what the coordinator may do when goals are missed: "
                          "exclude_straggler, staleness<=N (docs/goals.md)",
               .check = CheckAnswers,
               .canonical = CanonicalAnswers},
};

// Null when there is none of that name.
const JobSetting* FindJobSetting(std::string_view name);

// "SYNCLINE_CHECKPOINT_KEEP", which has the value that a launcher was told.
std::string VariableOf(const JobSetting& setting);
// "--checkpoint-keep".
std::string FlagOf(const JobSetting& setting);

// Reads a value as people write it; empty: the default. InvalidArgument, which leaves `settings` as they were,
// says what is allowed: "durability is 'paper', allowed are none, disk, peer and disk+peer".
absl::Status SetJobSetting(const JobSetting& setting, const std::string& value,
                           JobSettings& settings);
// As SetJobSetting takes it.
std::string GetJobSetting(const JobSetting& setting, const JobSettings& settings);

// The first value that is not allowed, as InvalidArgument.
absl::Status CheckJobSettings(const JobSettings& settings);

// The first setting that means something else in `theirs`; null: there is none.
const JobSetting* FindDifference(const JobSettings& ours, const JobSettings& theirs);

// The table of docs/settings.md, in Markdown.
std::string JobSettingsTable();

}  // namespace syncline
