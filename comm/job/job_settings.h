// The settings on which all workers of a job must agree, besides its tensors and its
// training: one struct, and one table from which the rest is derived.
//
//   JobSettings settings;
//   SYNCLINE_RETURN_IF_ERROR(
//       SetJobSetting(*FindJobSetting("durability"), "disk", settings));
//
// A row of the table defines the option in C and Python, the key in job files, the flag
// of `syncline run` and its variable (VariableOf), the message field
// (comm/rpc/job_settings_proto.h), the allowed values, the comparison between workers,
// and the entry in docs/settings.md.
//
// To add a setting, add a member and a row here, and the field in
// proto/coordinator.proto. ValidateJob (server/coordinator/job_spec.h) checks
// combinations of settings.
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
#include "comm/job/durability.h"
#include "comm/job/goals.h"
#include "comm/job/total_steps.h"

namespace syncline {

struct JobSettings {
  std::string push_codec = "bf16";  // codec of gradients
  std::string publish_codec = "bf16";
  CheckpointEvery checkpoint_every = {};
  uint32_t checkpoint_keep = 3;
  std::string resume = "auto";
  std::string durability = "none";   // durability.h
  std::string goals = "none";        // goals.h
  std::string answers = "none";      // answers.h
  std::string total_steps = "none";  // total_steps.h

  bool operator==(const JobSettings&) const = default;
};

// Which side may set a setting. A setting for operators is also a flag of `syncline run`,
// which passes it to programs as a variable. A program's own value has precedence.
enum class SaidBy { kProgramOrLauncher, kProgram };

// One row of the table. Properties that a row leaves out are not checked.
struct JobSetting {
  std::string_view name = {};  // in messages to people and job files
  // REQUIRES: the default of a string is not empty and that of a uint32_t is not 0, since
  // a missing message field means the default.
  std::variant<std::string JobSettings::*, uint32_t JobSettings::*,
               CheckpointEvery JobSettings::*>
      member = {};
  std::string_view option = name;  // name in C and Python
  // field of v1::JobSpec; "checkpoint.keep" is nested in a message
  std::string_view field = name;
  SaidBy said_by = SaidBy::kProgramOrLauncher;
  std::string_view meaning = {};

  // Allowed values of a number.
  uint32_t least = 0;
  uint32_t most = UINT32_MAX;
  // Allowed values of a string: one of `words` if there are any, and values for which
  // `check` returns OK.
  std::span<const std::string_view> words = {};
  absl::Status (*check)(const std::string& value) = nullptr;
  // Maps strings with the same meaning to the same string. Null: only equal strings
  // match.
  std::string (*canonical)(std::string_view value) = nullptr;
  // Whether messages leave the default out. True for each new row: members of earlier
  // versions, which do not know the setting, then declare a job with the same bytes.
  bool leaves_out_default = false;
};

absl::Status CheckPushCodec(const std::string& codec);
absl::Status CheckPublishCodec(const std::string& codec);
std::string CanonicalCodecs(std::string_view codec);
absl::Status CheckGoals(const std::string& goals);
absl::Status CheckAnswers(const std::string& answers);
absl::Status CheckTotalSteps(const std::string& steps);

inline constexpr std::array kJobSettings = {
    JobSetting{.name = "push_codec",
               .member = &JobSettings::push_codec,
               .option = "push",
               .said_by = SaidBy::kProgram,
               .meaning = "how gradients travel: a codec, or rules of codecs by the "
                          "names of tensors",
               .check = CheckPushCodec,
               .canonical = CanonicalCodecs},
    JobSetting{
        .name = "publish_codec",
        .member = &JobSettings::publish_codec,
        .option = "publish",
        .said_by = SaidBy::kProgram,
        .meaning =
            "how weights travel: a codec, or rules of codecs by the names of tensors",
        .check = CheckPublishCodec,
        .canonical = CanonicalCodecs},
    JobSetting{.name = "checkpoint_every",
               .member = &JobSettings::checkpoint_every,
               .field = "checkpoint.every",
               .meaning = "when the job is saved: '500 steps' or '10 min'"},
    JobSetting{.name = "checkpoint_keep",
               .member = &JobSettings::checkpoint_keep,
               .field = "checkpoint.keep",
               .meaning = "how many checkpoints are kept",
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
               .meaning = "how jobs survive lost servers: disk: by a journal of each "
                          "step (--journal-dir); peer: by a backup in another server's "
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
                          "exclude_straggler, staleness<=N, add_server "
                          "(docs/goals.md)",
               .check = CheckAnswers,
               .canonical = CanonicalAnswers},
    JobSetting{.name = "total_steps",
               .member = &JobSettings::total_steps,
               .meaning = "how many steps the program is going to make, for the progress "
                          "that others show; workers need not agree",
               .check = CheckTotalSteps,
               .canonical = CanonicalTotalSteps,
               .leaves_out_default = true},
};

// Returns null when there is no setting of that name.
const JobSetting* FindJobSetting(std::string_view name);

// Returns the variable by which a launcher passes the value, "SYNCLINE_CHECKPOINT_KEEP".
std::string VariableOf(const JobSetting& setting);
// Returns the flag, such as "--checkpoint-keep".
std::string FlagOf(const JobSetting& setting);

// Parses and stores a value; empty means the default. On InvalidArgument `settings` stays
// unchanged, and the message says what is allowed: "durability is 'paper', allowed are
// none, disk, peer and disk+peer".
absl::Status SetJobSetting(const JobSetting& setting, const std::string& value,
                           JobSettings& settings);
// Returns the value in the form that SetJobSetting takes.
std::string GetJobSetting(const JobSetting& setting, const JobSettings& settings);

// Returns InvalidArgument for the first value that is not allowed.
absl::Status CheckJobSettings(const JobSettings& settings);

// Returns the first setting whose meaning differs in `theirs`; null if there is none.
const JobSetting* FindDifference(const JobSettings& ours, const JobSettings& theirs);

// Returns the table of docs/settings.md, in Markdown.
std::string JobSettingsTable();

}  // namespace syncline
