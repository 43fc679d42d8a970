// Launcher: starts the services and handles their death.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/coordinator_wait.h"
#include "cli/launcher.h"
#include "cli/process_end.h"
#include "comm/base/failure.h"
#include "comm/base/patience.h"
#include "comm/base/status.h"
#include "comm/job/durability.h"
#include "comm/rpc/status_json.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

// A service opens a port and a small file, which takes a second on a busy host. It waits
// up to ten seconds for a bucket that does not answer (cli/serve.cc).
constexpr absl::Duration kReadyTimeout = absl::Seconds(30);
// Like other processes: this number of restarts, each soon after the last.
constexpr int kCoordinatorRestarts = FruitlessRestarts::kMost;
// A coordinator that ran for this long after a restart did not die because of its state.
constexpr absl::Duration kSoon = absl::Minutes(1);
constexpr absl::Duration kLookForSignalsEvery = absl::Milliseconds(50);
constexpr absl::Duration kStatusTimeout = absl::Seconds(1);

nlohmann::json JobsIn(const std::string& status) {
  const auto json = nlohmann::json::parse(status, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json.value("jobs", nlohmann::json::array())
                          : nlohmann::json::array();
}

bool LacksWorkers(const nlohmann::json& job) {
  const std::string phase = job.value("phase", "");
  const bool begins_or_runs =
      phase == "waiting" || phase == "running" || phase == "changing";
  return begins_or_runs && job.value("members", nlohmann::json::array()).size() <
                               job.value("expected_workers", size_t{0});
}

}  // namespace

std::optional<ReadyLine> ParseReadyLine(std::string_view line) {
  absl::string_view rest(line.data(), line.size());
  if (!absl::ConsumePrefix(&rest, "syncline: ready ")) return std::nullopt;
  ReadyLine ready;
  for (absl::string_view field : absl::StrSplit(rest, ' ')) {
    if (absl::ConsumePrefix(&field, "control=")) ready.control = std::string(field);
    if (absl::ConsumePrefix(&field, "admin=")) ready.admin = std::string(field);
    uint32_t server = 0;
    if (absl::ConsumePrefix(&field, "server=") && absl::SimpleAtoi(field, &server)) {
      ready.server = server;
    }
  }
  if (ready.control.empty()) return std::nullopt;
  return ready;
}

absl::Status Launcher::StartCoordinator() {
  if (!plan_.starts_coordinator) return AwaitCoordinator();
  SYNCLINE_RETURN_IF_ERROR(StartService(kCoordinator));
  SYNCLINE_RETURN_IF_ERROR(WaitUntilReady({kCoordinator}));
  if (signal_ != 0) return absl::OkStatus();
  coordinator_ = ready_[kCoordinator].control;
  coordinator_admin_ = ready_[kCoordinator].admin;
  if (at_start_) at_start_(coordinator_);
  return absl::OkStatus();
}

absl::Status Launcher::AwaitCoordinator() {
  const absl::Duration patience =
      options_.patience.empty() ? DefaultPatience(plan_.failure_timeout) : plan_.patience;
  CoordinatorWait wait(
      {.coordinator = coordinator_, .tls = options_.tls, .limit = patience}, Say);
  while (signal_ == 0) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool answers, wait.Answers(kLookForSignalsEvery));
    if (answers) break;
    const ProcessEvent event = processes_->Next(absl::Now());
    if (event.kind == ProcessEvent::kSignal) signal_ = event.signal;
  }
  return absl::OkStatus();
}

absl::Status Launcher::StartServers() {
  if (signal_ != 0) return absl::OkStatus();
  for (int i = 0; i < plan_.servers; ++i) {
    servers_.push_back(absl::StrCat("server", i));
    SYNCLINE_RETURN_IF_ERROR(StartService(servers_.back()));
    // Started one after the other, so that server0 becomes the coordinator's server 0.
    SYNCLINE_RETURN_IF_ERROR(WaitUntilReady({servers_.back()}));
    if (signal_ != 0) return absl::OkStatus();
  }
  return absl::OkStatus();
}

std::vector<std::string> Launcher::FlagsOf(const std::string& name) const {
  std::vector<std::string> flags;
  const auto add = [&flags](const char* flag, const std::string& value) {
    if (!value.empty()) flags.insert(flags.end(), {flag, value});
  };
  const std::string any_port = "127.0.0.1:0";
  std::string admin = any_port;
  if (name == kCoordinator) {
    add("--role", "coordinator");
    add("--state-dir", scratch_ + "/state");
    // With 0 servers, the coordinator refuses workers that need one instead of letting
    // them wait.
    add("--servers", plan_.servers == 0 ? "0" : "");
    // After a restart it listens at the same address, which its members know.
    add("--listen", coordinator_.empty() ? any_port : coordinator_);
    if (!coordinator_admin_.empty()) admin = coordinator_admin_;
  } else {
    const int threads = options_.engine_threads;
    const uint64_t memory = plan_.server_memory_bytes;
    add("--role", "server");
    add("--coordinator", coordinator_);
    add("--engine-threads", threads > 0 ? absl::StrCat(threads) : "");
    add("--data-plane", options_.data_plane);
    add("--memory", memory > 0 ? absl::StrCat(memory) : "");
    add("--journal-dir", options_.journal_dir);
    const auto& factor = options_.journal_snapshot_factor;
    add("--journal-snapshot-factor", factor ? absl::StrCat(*factor) : "");
    add("--listen", any_port);
  }
  add("--admin-listen", admin);
  add("--failure-timeout", absl::FormatDuration(plan_.failure_timeout));
  add("--patience",
      options_.patience.empty() ? "" : absl::FormatDuration(plan_.patience));
  add("--checkpoint-dir", options_.checkpoint_dir);
  return flags;
}

absl::Status Launcher::StartService(const std::string& name) {
  ProcessSpec spec;
  spec.name = name;
  spec.argv = {syncline_, "serve"};
  const std::vector<std::string> flags = FlagsOf(name);
  spec.argv.insert(spec.argv.end(), flags.begin(), flags.end());
  // Flags pass the directory to the services that need it.
  spec.env.emplace_back("SYNCLINE_JOURNAL_DIR", "");
  spec.out = Output::kLog;
  spec.err = Output::kLog;
  spec.log_path = LogPath(name);
  spec.on_line = [this, name](std::string_view line) {
    if (auto ready = ParseReadyLine(line)) OnReady(name, *std::move(ready));
  };
  ready_.erase(name);
  services_.insert(name);
  return processes_->Start(spec);
}

void Launcher::OnReady(const std::string& name, ReadyLine ready) {
  if (ready.server) {
    const auto [number, is_first] = numbers_.try_emplace(name, *ready.server);
    const uint32_t before = std::exchange(number->second, *ready.server);
    if (!is_first && before != *ready.server) {
      Say(absl::StrCat("server ", *ready.server, " is here in place of server ", before,
                       "; its log is ", LogPath(name)));
    }
  }
  ready_[name] = std::move(ready);
}

std::string Launcher::CalledByStatus(const std::string& name) const {
  const auto number = numbers_.find(name);
  return number == numbers_.end() ? name : absl::StrCat("server ", number->second);
}

absl::Status Launcher::WaitUntilReady(const std::set<std::string>& names) {
  const absl::Time deadline = absl::Now() + kReadyTimeout;
  for (;;) {
    std::vector<std::string> missing;
    for (const std::string& name : names) {
      if (ready_.count(name) == 0) missing.push_back(name);
    }
    if (missing.empty()) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          absl::StrJoin(missing, ", "), " did not come up within ",
          absl::FormatDuration(kReadyTimeout), "; see ", LogPath(missing.front())));
    }
    const ProcessEvent event = processes_->Next(deadline);
    if (event.kind == ProcessEvent::kExit) return ServiceDied(event);
    if (event.kind == ProcessEvent::kSignal) {
      signal_ = event.signal;
      return absl::OkStatus();
    }
  }
}

// The program may have chosen a job without a journal. Then the coordinator ends the job,
// and tells the workers why.
bool Launcher::ServersComeBack(const JobFacts& job) const {
  return !options_.journal_dir.empty() &&
         (!job.durability || HasJournals(*job.durability));
}

Launcher::JobFacts Launcher::AskForJob() const {
  JobFacts facts = {.durability = ParseDurability(options_.Setting("durability"))};
  // A short timeout, because Ctrl-C has to wait for this call.
  const auto status = StatusJsonIfAnswered(coordinator_, options_.tls, kStatusTimeout);
  if (!status) return facts;
  for (const nlohmann::json& job : JobsIn(*status)) {
    // A program may have sessions in other jobs too.
    const auto name = job.value("name", std::string());
    const bool is_named = name == options_.job;
    const bool is_of_this_run =
        !options_.run_id.empty() && job.value("run_id", "") == options_.run_id;
    if (is_named || is_of_this_run) {
      // A job that begins again has a new number and starts from step 0. That is no
      // progress.
      uint64_t& furthest = facts.steps[name];
      furthest = std::max(furthest, job.value("step", uint64_t{0}));
    }
    // By now, another launcher may have begun a run of a job of this name.
    if (options_.run_id.empty() ? is_named : is_of_this_run) {
      facts.lacks_workers = facts.lacks_workers || LacksWorkers(job);
    }
    // Without a mode, only the job's end is known: it ended before the coordinator
    // restarted.
    if (!is_named || job.value("mode", "").empty()) continue;
    if (job.contains("durability")) {
      facts.durability = ParseDurability(job.value("durability", ""));
    }
    facts.mode = job.value("mode", std::string());
    facts.waits_for_servers = job.value("waits_for_servers", true);
  }
  return facts;
}

// Members wait for the coordinator, and jobs continue from its stored state.
absl::Status Launcher::OnCoordinatorDeath(const ProcessEvent& event) {
  if (event.lived >= kSoon) coordinator_restarts_ = 0;
  if (coordinator_restarts_ == kCoordinatorRestarts) {
    const absl::Status died = ServiceDied(event);
    return WithFailure(
        absl::AbortedError(absl::StrCat(
            std::string(died.message()), "; it was started again ", kCoordinatorRestarts,
            " times, and each time ended within ", absl::FormatDuration(kSoon))),
        FailureOf(died));
  }
  StartAgain(event, ++coordinator_restarts_, "with the state that it had stored");
  return absl::OkStatus();
}

// Returns the error for a job that does not wait for a server. Its workers are not
// started again: they would begin at step 0, while the journal has later steps.
std::string Launcher::WhatIsLeft(const std::string& what, const JobFacts& job) const {
  const std::string begin =
      absl::StrCat(what, "; jobs of mode ", job.mode, " do not wait for a server: ");
  if (absl::StartsWith(job.mode, "asp")) {
    return absl::StrCat(begin,
                        "its progress is only in checkpoints (--checkpoint-every)");
  }
  return absl::StrCat(
      begin, "the journal in ", options_.journal_dir,
      " has its steps, and the same command goes on from the last one",
      options_.checkpoint_dir.empty() ? " with --checkpoint-dir DIR" : "");
}

absl::Status Launcher::OnServerDeath(const ProcessEvent& event) {
  const absl::Status died = ServiceDied(event);
  const std::string what(died.message());
  const JobFacts job = AskForJob();
  const bool is_held = job.durability && HasBackups(*job.durability);
  const bool has_backup = is_held && AnotherServerRuns(event.name);
  if (!has_backup && !ServersComeBack(job)) {
    if (!options_.advises) return died;
    return WithFailure(
        absl::AbortedError(absl::StrCat(
            what,
            "; its weights were in its memory: with --durability disk and "
            "--journal-dir DIR (mode bsp) it is started again and no step is lost, "
            "with --durability peer and two servers or more the job goes on without it, "
            "with --checkpoint-dir DIR the next run goes on from a checkpoint")),
        FailureOf(died));
  }
  if (!has_backup && !job.waits_for_servers)
    return WithFailure(absl::AbortedError(WhatIsLeft(what, job)), FailureOf(died));
  FruitlessRestarts& restarts = server_restarts_[event.name];
  restarts.NoteDeath(job.steps);
  if (!restarts.AreUsedUp()) {
    StartAgain(event, restarts.NoteRestart(),
               has_backup ? "to hold backups; its own backup takes over in another "
                            "server's memory, unless that is lost, too"
                          : absl::StrCat("with its journal in ", options_.journal_dir));
    return absl::OkStatus();
  }
  const std::string how_often = absl::StrCat(what, "; ", restarts.Describe());
  if (has_backup) {
    Say(absl::StrCat(how_often, ": the job goes on without it"));
    return absl::OkStatus();
  }
  return WithFailure(absl::AbortedError(absl::StrCat(
                         how_often,
                         ": once the cause is removed, syncline replay makes a "
                         "checkpoint of the journals, from which the next run goes on")),
                     FailureOf(died));
}

bool Launcher::AnotherServerRuns(const std::string& name) const {
  return std::ranges::any_of(servers_, [&](const std::string& server) {
    return server != name && processes_->IsRunning(server);
  });
}

void Launcher::StartAgain(const ProcessEvent& event, int restarts,
                          const std::string& how) {
  const absl::Duration pause = PauseBefore(restarts, options_.restart_pause);
  Say(absl::StrCat(std::string(ServiceDied(event).message()), "; starting it again ",
                   DescribePause(pause), how));
  service_start_at_[event.name] = absl::Now() + pause;
}

absl::Status Launcher::ServiceDied(const ProcessEvent& event) const {
  const bool was_up = ready_.count(event.name) != 0;
  const absl::Status died = absl::AbortedError(absl::StrCat(
      CalledByStatus(event.name), was_up ? " died with " : " did not start, ",
      DescribeExit(event.wait_status), LastWords(event), "; its log is ",
      LogPath(event.name)));
  // Once the job runs, losing a server or the coordinator is not the job's fault.
  return WithFailure(died,
                     was_up ? Failure::kRetryable : FailureOfExit(event.wait_status));
}

}  // namespace syncline
