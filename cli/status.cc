#include "cli/status.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/flags.h"
#include "cli/goal_lines.h"
#include "cli/human_bytes.h"
#include "cli/job_choice.h"
#include "cli/local_runs.h"
#include "cli/output_width.h"
#include "comm/base/byte_size.h"
#include "comm/base/exit_codes.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/status_json.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

// Shorter than the failure timeout, because a user waits for the answer.
constexpr absl::Duration kTimeout = absl::Seconds(3);
constexpr absl::Duration kWatchInterval = absl::Seconds(1);
// Limits the finished jobs, so that they fit on a screen under the running ones.
constexpr size_t kFinishedJobsShown = 5;
// Indentation of the further lines of a line that is too long.
constexpr size_t kHanging = 4;
constexpr char kClearScreen[] = "\x1b[H\x1b[2J";

using Json = nlohmann::json;
using Align = WordTable::Column::Align;

struct StatusOptions {
  std::string job;
  std::string coordinator;
  std::string given_coordinator;  // empty: the flag was not given
  OutputFormat format = OutputFormat::kTable;
  bool watch = false;
  StatusDetail detail = StatusDetail::kBrief;
  TlsOptions tls;
};

// Returns text of a member for display. Control characters, which could move the
// terminal's cursor, are escaped.
std::string Text(const Json& object, const char* key) {
  const std::string text = object.value(key, "");
  return text.empty() ? "-" : Printable(text);
}

std::string Age(const Json& object) {
  return absl::StrFormat("%.1f s", object.value("heartbeat_age_seconds", 0.0));
}

std::string Bytes(const Json& object) { return HumanBytes(object.value("bytes", 0.0)); }

// Returns how much memory the server's jobs use, and their common limit.
std::string Memory(const Json& server) {
  const std::string placed =
      FormatByteSize(server.value("memory_placed_bytes", uint64_t{0}));
  const uint64_t budget = server.value("memory_budget_bytes", uint64_t{0});
  return budget == 0 ? placed : absl::StrCat(placed, " of ", FormatByteSize(budget));
}

std::string StateOf(const Json& server) {
  const auto lost = server.find("lost_seconds");
  if (lost != server.end())
    return absl::StrFormat("lost %.0f s ago", lost->get<double>());
  return server.value("drains", false) ? "draining" : "attached";
}

// Returns how the server's data travels, and why.
std::string LanesOf(const Json& server) {
  const std::string because = server.value("lanes_because", "");
  return absl::StrCat(Text(server, "lanes"),
                      because.empty() ? "" : absl::StrCat(" (", because, ")"));
}

// Lanes are shown if servers use different ones, or if others on the network could read
// or change the data.
bool LanesMatter(const Json& servers) {
  std::set<std::string> lanes;
  for (const Json& server : servers) lanes.insert(server.value("lanes", ""));
  return lanes.size() > 1 || std::ranges::any_of(lanes, [](const std::string& lane) {
           return absl::StrContains(lane, "neither sealed nor authenticated");
         });
}

std::string ServerTable(const Json& servers, const StatusLayout& layout) {
  if (servers.empty()) return "no servers yet, or none that this certificate may see\n";
  WordTable table({{"SERVER"},
                   {"NAME"},
                   {"SHARDS", Align::kRight, 2},
                   {"BYTES", Align::kRight, 1},
                   {"MEMORY", Align::kRight},
                   {"HEARTBEAT", Align::kRight},
                   {"STATE"}});
  for (const Json& server : servers) {
    table.Add({absl::StrCat(server.value("server", 0)), Text(server, "name"),
               absl::StrCat(server.value("shards", 0)), Bytes(server), Memory(server),
               Age(server), StateOf(server)});
  }
  std::string written = table.Written(layout.columns);
  if (layout.detail == StatusDetail::kBrief && !LanesMatter(servers)) return written;
  WordTable lanes({{"SERVER"}, {"LANES"}});
  for (const Json& server : servers) {
    lanes.Add({absl::StrCat(server.value("server", 0)), LanesOf(server)});
  }
  return absl::StrCat(written, "\n", lanes.Written(layout.columns));
}

std::string MemberTable(const Json& members, size_t columns) {
  WordTable table({{"RANK"},
                   {"NAME"},
                   {"LIFE", Align::kRight, 1},
                   {"BYTES", Align::kRight, 2},
                   {"HEARTBEAT", Align::kRight},
                   {"STEP", Align::kRight},
                   {"STATE"}});
  for (const Json& member : members) {
    table.Add({absl::StrCat(member.value("rank", 0)), Text(member, "name"),
               absl::StrCat(member.value("incarnation", 0)), Bytes(member), Age(member),
               absl::StrCat(member.value("step", uint64_t{0})),
               member.value("waiting", false) ? "waiting" : "working"});
  }
  return table.Written(columns);
}

// Shows values that change from step to step. Loss scale and skipped steps appear only if
// there are some.
std::string NumericLine(const Json& job) {
  std::string line =
      absl::StrFormat("  learning rate %g", job.value("learning_rate", 0.0));
  const double loss_scale = job.value("loss_scale", 1.0);
  if (loss_scale != 1) absl::StrAppendFormat(&line, ", loss scale %g", loss_scale);
  const uint64_t skipped = job.value("skipped_steps", uint64_t{0});
  if (skipped > 0) absl::StrAppendFormat(&line, ", %d steps skipped", skipped);
  const uint64_t left_out = job.value("left_out", uint64_t{0});
  if (left_out > 0) {
    absl::StrAppendFormat(&line, ", %d contributions came after the quorum", left_out);
  }
  return line + "\n";
}

Json Compression(const Json& member) {
  return member.value("compression", Json::object());
}

// The ratio of tiny tensors may be below 1, because a codec adds its own fields.
std::string Smaller(double ratio) {
  if (ratio >= 1) return absl::StrFormat("%.1f times smaller than", ratio);
  return absl::StrFormat("%.1f times as large as", 1 / ratio);
}

// Shows how gradients and weights travel, and what compression gains and costs.
std::string CodecLine(const Json& job, const Json& members) {
  std::string line =
      absl::StrFormat("  mode %s; pushes %s, publishes %s", Text(job, "mode"),
                      Text(job, "push_codec"), Text(job, "publish_codec"));
  const auto mean = [&](const char* figure) {
    double sum = 0;
    for (const Json& member : members) sum += Compression(member).value(figure, 0.0);
    return members.empty() ? 0.0 : sum / static_cast<double>(members.size());
  };
  if (mean("ratio") > 0) {
    absl::StrAppend(&line, "; gradients are ", Smaller(mean("ratio")), " FP32");
  }
  if (mean("encode_ns_per_value") > 0) {
    absl::StrAppendFormat(&line,
                          "\n  compression: %.2f ns to encode a value, %.2f to decode "
                          "one; the residual is %.1f times a gradient",
                          mean("encode_ns_per_value"), mean("decode_ns_per_value"),
                          mean("residual_ratio"));
  }
  uint64_t diverged = 0;
  for (const Json& member : members) {
    diverged += Compression(member).value("diverged_blocks", uint64_t{0});
    if (Compression(member).value("choice", "").empty()) continue;
    absl::StrAppendFormat(&line, "\n  worker %d chooses %s", member.value("rank", 0),
                          Text(Compression(member), "choice"));
  }
  if (diverged > 0) {
    absl::StrAppendFormat(
        &line, "\n  %d views differed from the servers' and were sent again", diverged);
  }
  return line + "\n";
}

// Empty if the job saves nothing.
std::string CheckpointLine(const Json& job) {
  const Json saved = job.value("checkpoint", Json::object());
  std::vector<std::string> parts;
  if (!saved.value("resumed_from", "").empty()) {
    parts.push_back(absl::StrCat("resumed from ", Text(saved, "resumed_from")));
  }
  if (saved.value("written", uint64_t{0}) > 0) {
    parts.push_back(absl::StrFormat(
        "last checkpoint %s, %.0f s ago: %s in %.1f s", Text(saved, "latest"),
        saved.value("age_seconds", 0.0), HumanBytes(saved.value("bytes", 0.0)),
        saved.value("seconds", 0.0)));
  }
  if (saved.value("is_under_way", false)) parts.emplace_back("one is being written");
  if (const auto failed = saved.value("failed", uint64_t{0}); failed > 0) {
    const std::string why = Text(saved, "error");
    parts.push_back(absl::StrFormat(
        "%d failed%s", failed, why.empty() ? "" : absl::StrCat(", the last: ", why)));
  }
  return parts.empty() ? "" : absl::StrCat("  ", absl::StrJoin(parts, "; "), "\n");
}

// How far journals or backups are.
struct SafeSteps {
  std::set<uint32_t> unsafe = {};      // servers without a journal or backup now
  std::optional<uint64_t> below = {};  // for all other servers, once each has reported
  uint64_t lag = 0;
};

SafeSteps SafeStepsOf(const Json& job) {
  SafeSteps safe;
  const bool has_both = job.value("durability", "") == "disk+peer";  // one is enough
  std::set<uint32_t> without_backup = {};
  for (const Json& backup : job.value("backups", Json::array())) {
    if (backup.value("lost", "").empty()) continue;
    (has_both ? without_backup : safe.unsafe).insert(backup.value("server", 0U));
  }
  size_t heard = 0;
  for (const Json& server : job.value("records", Json::array())) {
    const auto number = server.value("server", uint32_t{0});
    const bool is_alone = !has_both || without_backup.contains(number);
    if (is_alone && !server.value("error", "").empty()) safe.unsafe.insert(number);
    if (safe.unsafe.contains(number)) continue;
    ++heard;
    const auto step = server.value("durable_step", uint64_t{0});
    safe.below = std::min(safe.below.value_or(step), step);
    safe.lag = std::max(safe.lag, server.value("lag_steps", uint64_t{0}));
  }
  const size_t trained = job.value("training_servers", size_t{0});
  if (heard + safe.unsafe.size() < trained) safe.below.reset();
  return safe;
}

// Workers and servers report at different times. A step that all servers have recorded
// was made, even if no worker has reported it yet.
uint64_t StepOf(const Json& job) {
  const auto said = job.value("step", uint64_t{0});
  const SafeSteps safe = SafeStepsOf(job);
  return safe.unsafe.empty() ? std::max(said, safe.below.value_or(0)) : said;
}

// If the servers' report is older than the workers', the text says so.
std::string SaidOf(const SafeSteps& safe, uint64_t step) {
  const bool is_older = *safe.below < step;
  return absl::StrCat(
      safe.unsafe.empty() ? "" : "for the other servers ", "all steps below ",
      *safe.below, is_older ? " were safe" : " are safe",
      safe.lag == 0 ? "" : absl::StrCat(", ", safe.lag, " more on the way"),
      is_older ? " at the last heartbeat" : "");
}

// Describes the journals, with the reason for each that has ended.
std::string RecordsOf(const Json& job) {
  const SafeSteps safe = SafeStepsOf(job);
  uint64_t on_disk = 0;
  uint64_t begins_at = 0;
  std::vector<std::string> parts;
  for (const Json& server : job.value("records", Json::array())) {
    on_disk += server.value("disk_bytes", uint64_t{0});
    begins_at = std::max(begins_at, server.value("begins_at", uint64_t{0}));
    if (server.value("error", "").empty()) continue;
    parts.push_back(absl::StrCat("the journal of server ", server.value("server", 0U),
                                 " has ended: ", Text(server, "error")));
  }
  if (safe.below) parts.push_back(SaidOf(safe, StepOf(job)));
  if (on_disk > 0) {
    parts.push_back(absl::StrCat(
        HumanBytes(static_cast<double>(on_disk)), " on disk",
        begins_at == 0 ? "" : absl::StrCat(", from step ", begins_at, " on")));
  }
  return absl::StrJoin(parts, "; ");
}

// Empty without durability. Gives the reason for each backup that is lost.
std::string DurabilityLine(const Json& job) {
  const std::string durability = job.value("durability", "none");
  if (durability.empty() || durability == "none") return "";
  std::vector<std::string> parts;
  for (const Json& backup : job.value("backups", Json::array())) {
    const std::string server = absl::StrCat("server ", backup.value("server", 0));
    if (!backup.value("lost", "").empty()) {
      const bool is_sought = !backup.value("next", "").empty();
      parts.push_back(
          absl::StrCat(server, " no longer has a backup: ", Text(backup, "lost"),
                       is_sought ? ", and " : "", is_sought ? Text(backup, "next") : ""));
    } else {
      parts.push_back(absl::StrCat(server, "'s backup is with ", Text(backup, "holder")));
    }
  }
  const std::string records = RecordsOf(job);
  if (!records.empty()) parts.push_back(records);
  return absl::StrCat("  durability ", durability, parts.empty() ? "" : ": ",
                      absl::StrJoin(parts, "; "), "\n");
}

// Empty if nothing was lost.
std::string RecoveryLine(const Json& job) {
  const Json recoveries = job.value("recoveries", Json::object());
  const auto count = recoveries.value("count", uint64_t{0});
  if (count == 0) return "";
  return absl::StrFormat(
      "  %d recover%s, no step lost; the last: %s, back after %.1f s, %.0f s ago\n",
      count, count == 1 ? "y" : "ies", Text(recoveries, "last"),
      recoveries.value("last_seconds", 0.0), recoveries.value("last_age_seconds", 0.0));
}

// A small model would show as 0.00 M, so its parameters are counted.
std::string Parameters(double count) {
  return count < 1e5 ? absl::StrFormat("%.0f parameter%s", count, count == 1 ? "" : "s")
                     : absl::StrFormat("%.2f M parameters", count / 1e6);
}

std::string Ago(double seconds) {
  if (seconds < 100) return absl::StrFormat("%.0f s ago", seconds);
  if (seconds < 6000) return absl::StrFormat("%.0f min ago", seconds / 60);
  return seconds < 2 * 86400 ? absl::StrFormat("%.0f h ago", seconds / 3600)
                             : absl::StrFormat("%.0f days ago", seconds / 86400);
}

// Returns for example "failed at step 120, 3 min ago: no worker for 50s; rank 1 died:
// signal 9 (Killed)".
std::string EndOf(const Json& end) {
  std::string text =
      absl::StrFormat("%s at step %d, %s", Text(end, "phase"),
                      end.value("step", uint64_t{0}), Ago(end.value("age_seconds", 0.0)));
  if (!end.value("reason", "").empty()) {
    absl::StrAppend(&text, ": ", Text(end, "reason"));
  }
  if (!end.value("exit", "").empty()) absl::StrAppend(&text, "; ", Text(end, "exit"));
  return text;
}

// Empty if no earlier run is known.
std::string BeforeLine(const Json& job) {
  const auto before = job.find("before");
  if (before == job.end() || !before->is_object()) return "";
  return absl::StrCat("  the run before: ", EndOf(*before), "\n");
}

std::string JobTable(const Json& job, size_t columns) {
  const Json members = job.value("members", Json::array());
  std::string table = absl::StrFormat(
      "job %s: %s, epoch %d, step %d, %d of %d workers, %s\n", Text(job, "name"),
      Text(job, "phase"), job.value("epoch", uint64_t{0}), StepOf(job), members.size(),
      job.value("expected_workers", 0), Parameters(job.value("parameters", 0.0)));
  if (!job.value("reason", "").empty()) {
    absl::StrAppendFormat(&table, "  %s\n", Text(job, "reason"));
  }
  table += CodecLine(job, members);
  table += NumericLine(job);
  table += CheckpointLine(job);
  table += DurabilityLine(job);
  table += RecoveryLine(job);
  table += GoalLines(job);
  table += BeforeLine(job);
  table = BrokenLines(table, columns, kHanging);
  if (!members.empty()) table += MemberTable(members, columns);
  return table;
}

bool IsFinished(const Json& job) {
  const std::string phase = job.value("phase", "");
  return phase == "over" || phase == "failed";
}

// Lists the latest finished jobs, one per line. A coordinator may have seen thousands.
std::string FinishedJobs(const Json& jobs) {
  std::vector<const Json*> finished;
  for (const Json& job : jobs) {
    if (IsFinished(job)) finished.push_back(&job);
  }
  if (finished.empty()) return "";
  std::sort(finished.begin(), finished.end(), [](const Json* a, const Json* b) {
    return a->value("job", 0U) > b->value("job", 0U);
  });
  const size_t shown = std::min(finished.size(), kFinishedJobsShown);
  std::string text = "\nfinished jobs\n";
  for (size_t i = 0; i < shown; ++i) {
    const Json& job = *finished[i];
    if (const auto ended = job.find("ended"); ended != job.end() && ended->is_object()) {
      absl::StrAppendFormat(&text, "  %s: %s\n", Text(job, "name"), EndOf(*ended));
      continue;
    }
    const bool has_reason = !job.value("reason", "").empty();
    absl::StrAppendFormat(&text, "  %s: %s at step %d%s\n", Text(job, "name"),
                          Text(job, "phase"), job.value("step", uint64_t{0}),
                          has_reason ? absl::StrCat(", ", Text(job, "reason")) : "");
  }
  if (shown < finished.size()) {
    absl::StrAppendFormat(&text, "  and %d more; --json shows all\n",
                          finished.size() - shown);
  }
  return text;
}

absl::StatusOr<std::string> Fetch(const StatusOptions& options,
                                  const std::string& coordinator) {
  const std::vector<std::string> starting = JobsStartedWith(coordinator);
  SYNCLINE_ASSIGN_OR_RETURN(std::string text,
                            FetchStatusJson(coordinator, options.tls, kTimeout));
  SYNCLINE_ASSIGN_OR_RETURN(text, StatusOfJob(text, options.job, starting));
  if (options.format != OutputFormat::kTable) return text + "\n";
  return StatusAsTable(text, coordinator, {OutputColumns(), options.detail, starting});
}

// With --watch, waits for a job that is unknown, since it may not have begun, and for a
// coordinator that is away. A run that begins again has another coordinator.
absl::StatusOr<int> ShowStatus(const StatusOptions& options) {
  std::string coordinator = options.coordinator;
  std::string said;  // last reason printed since a status was shown
  for (bool was_shown = false;;) {
    const auto text = Fetch(options, coordinator);
    const bool is_away = was_shown && (absl::IsUnavailable(text.status()) ||
                                       absl::IsDeadlineExceeded(text.status()));
    const bool may_come = options.watch && (is_away || absl::IsNotFound(text.status()));
    if (!text.ok() && !may_come) return text.status();
    if (text.ok()) {
      if (options.watch && isatty(STDOUT_FILENO) != 0) std::cout << kClearScreen;
      std::cout << *text << std::flush;
      was_shown = true;
      said.clear();
    } else {
      const std::string why(text.status().message());
      if (std::exchange(said, why) != why)
        std::cerr << "syncline: " << why << "; waiting for it" << std::endl;
      coordinator =
          CoordinatorToAskNow(options.given_coordinator, options.job, coordinator);
    }
    if (!options.watch || !std::cout) return kExitDone;
    absl::SleepFor(kWatchInterval);
  }
}

}  // namespace

absl::StatusOr<std::string> StatusAsTable(const std::string& json,
                                          const std::string& coordinator,
                                          const StatusLayout& layout) {
  const size_t columns = layout.columns;
  const Json status = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) {
    return absl::InternalError(
        absl::StrCat(coordinator, " sent a status that is not JSON"));
  }
  std::string text = BrokenLines(
      absl::StrFormat("coordinator %s, syncline %s, up %.0f s\n\n", coordinator,
                      Text(status, "build_version"), status.value("uptime_seconds", 0.0)),
      columns, kHanging);
  text += ServerTable(status.value("servers", Json::array()), layout);
  const Json jobs = status.value("jobs", Json::array());
  if (jobs.empty()) absl::StrAppend(&text, "\n", NoJobs(layout.starting), "\n");
  for (const Json& job : jobs) {
    if (!IsFinished(job)) absl::StrAppend(&text, "\n", JobTable(job, columns));
  }
  return text + BrokenLines(FinishedJobs(jobs), columns, kHanging);
}

void AddStatus(CLI::App& app, Command* selected) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* status = app.add_subcommand("status", "Show servers, jobs and members");
  status->add_option("job", options->job, kChosenJob);
  AddCoordinatorFlag(*status, &options->coordinator);
  status->add_flag("--watch", options->watch,
                   "Show it again every second; wait for a JOB that does not exist yet, "
                   "and for a coordinator that is away");
  status->add_flag_callback(
      "--verbose", [=] { options->detail = StatusDetail::kAll; },
      "Also show how each server's data travels, and why");
  AddOutputFlag(*status, &options->format);
  AddTlsFlags(*status, &options->tls);
  status->callback(
      [=] { *selected = [options] { return Asking(*options, ShowStatus); }; });
}

}  // namespace syncline
