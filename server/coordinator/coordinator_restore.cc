// What is stored of the coordinator, and how the next process continues from it.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "nlohmann/json.hpp"
#include "server/coordinator/coordinator_impl.h"
#include "server/coordinator/refusal.h"

namespace syncline {
namespace {

constexpr int kStateVersion = 1;
// More steps than any job makes between two heartbeats. Checkpoints are ordered for the
// near future.
constexpr uint64_t kMaxStepsAhead = 1'000'000'000;
constexpr size_t kMaxUnusedNames = 1024;  // of jobs and of servers, each

// Checks what Job::Restore relies on. A record that cannot be true ends its job here, so
// that it does not end the coordinator.
absl::Status CheckRecord(const JobRecord& record, const JobSpec& spec) {
  if (record.name != spec.name) {
    return absl::DataLossError("its record and its declaration have different names");
  }
  if (record.epoch.epoch == 0 || record.servers.empty()) {
    return absl::DataLossError("its record has no epoch, or no servers");
  }
  std::set<uint32_t> numbers;
  for (const RecordedServer& server : record.servers) {
    if (server.shard_addresses.empty() ||
        !numbers.insert(server.identity.server).second) {
      return absl::DataLossError(
          "its record has a server without shards, or a server twice");
    }
  }
  for (const MemberRecord& member : record.epoch.members) {
    if (member.rank >= kMaxWorkers) {
      return absl::DataLossError(absl::StrCat("its record has rank ", member.rank,
                                              ", which is above ", kMaxWorkers - 1));
    }
  }
  // Otherwise no checkpoint would be made before that step.
  if (record.last_cut > record.step && record.last_cut - record.step > kMaxStepsAhead) {
    return absl::DataLossError(absl::StrCat("its record is of step ", record.step,
                                            ", but has a checkpoint of step ",
                                            record.last_cut));
  }
  const std::vector<TrainedTensor> tensors = spec.Trained();
  SYNCLINE_RETURN_IF_ERROR(CheckChange(spec.training, record.training, tensors));
  if (!record.epoch.training) return absl::OkStatus();
  return CheckChange(spec.training, *record.epoch.training, tensors);
}

}  // namespace

// ---- Numbers that only grow ----

void Coordinator::Impl::ForgetUnusedNames() {
  counters_.epochs.Prune(kMaxUnusedNames + jobs_.size(), [this](const std::string& name) {
    return jobs_.contains(name);
  });
  server_incarnations_.Prune(kMaxUnusedNames + servers_.size(),
                             [this](const std::string& name) {
                               const auto is_named = [&](const auto& server) {
                                 return server.second.name == name;
                               };
                               return std::ranges::any_of(servers_, is_named) ||
                                      std::ranges::any_of(absent_, is_named);
                             });
}

std::string Coordinator::Impl::State() {
  ForgetUnusedNames();
  return nlohmann::json{{"version", kStateVersion},
                        {"term", term_},
                        {"failure_timeout_ms",
                         absl::ToInt64Milliseconds(options_.timeouts.failure_timeout)},
                        {"next_job", counters_.next_job},
                        {"next_incarnation", counters_.next_incarnation},
                        {"next_server", next_server_},
                        {"epochs", counters_.epochs.values()},
                        {"epoch_floor", counters_.epochs.floor()},
                        {"server_incarnations", server_incarnations_.values()},
                        {"server_incarnation_floor", server_incarnations_.floor()}}
      .dump();
}

absl::Status Coordinator::Impl::RestoreNumbers(const std::string& text) {
  const nlohmann::json state = nlohmann::json::parse(text, nullptr, false);
  const auto unreadable = [](absl::string_view what) {
    return WithFailure(
        absl::DataLossError(absl::StrCat("the coordinator's stored state ", what,
                                         "; restore it from a copy, or choose an empty "
                                         "--state-dir")),
        Failure::kStateUnusable);
  };
  if (!state.is_object()) return unreadable("cannot be read");
  const auto version = state.find("version");
  if (version == state.end() || *version != kStateVersion)
    return unreadable("is of another version");
  const auto number = [&](const char* key) {
    const auto found = state.find(key);
    return found != state.end() && found->is_number_unsigned();
  };
  const auto map = [&](const char* key) {
    const auto found = state.find(key);
    return found != state.end() && found->is_object() &&
           std::all_of(found->begin(), found->end(),
                       [](const auto& value) { return value.is_number_unsigned(); });
  };
  if (!number("next_job") || !number("next_incarnation") || !number("next_server") ||
      !map("epochs") || !map("server_incarnations")) {
    return unreadable("lacks a field");
  }
  counters_.next_job = state["next_job"];
  counters_.next_incarnation = state["next_incarnation"];
  next_server_ = state["next_server"];
  // Older states have no floors, no term and no failure timeout.
  term_ = (number("term") ? state["term"].get<uint64_t>() : 0) + 1;
  if (number("failure_timeout_ms")) {
    former_timeout_ = absl::Milliseconds(state["failure_timeout_ms"].get<int64_t>());
  }
  const auto numbers = [&](const char* key, const char* floor) {
    return GrowingNumbers(state[key].get<std::map<std::string, uint64_t>>(),
                          number(floor) ? state[floor].get<uint64_t>() : 0);
  };
  counters_.epochs = numbers("epochs", "epoch_floor");
  server_incarnations_ = numbers("server_incarnations", "server_incarnation_floor");
  return absl::OkStatus();
}

// ---- Jobs ----

absl::Status Coordinator::Impl::Restore(const StoredState& stored,
                                        const DeclarationReader& reader) {
  SYNCLINE_RETURN_IF_ERROR(RestoreNumbers(stored.state));
  RestoreJobs(stored, reader);
  return CheckFormerTimeout();
}

// Members with another failure timeout are refused, which would end their jobs. They wait
// while the coordinator does not start.
absl::Status Coordinator::Impl::CheckFormerTimeout() const {
  const absl::Duration timeout = options_.timeouts.failure_timeout;
  if (jobs_.empty() || former_timeout_.value_or(timeout) == timeout) {
    return absl::OkStatus();
  }
  return WithFailure(
      absl::FailedPreconditionError(absl::StrCat(
          jobs_.size(), jobs_.size() == 1 ? " job runs" : " jobs run",
          " with --failure-timeout ", absl::FormatDuration(*former_timeout_),
          ", but this coordinator was started with ", absl::FormatDuration(timeout),
          ", which would end them: start it with the former value until they have ended, "
          "or choose an "
          "empty --state-dir to give them up")),
      Failure::kUsage);
}

// Restores the jobs. A job that cannot be read ends, and the others continue.
void Coordinator::Impl::RestoreJobs(const StoredState& stored,
                                    const DeclarationReader& reader) {
  for (const auto& [key, value] : stored.records) {
    const std::string suffix = "/declaration";
    if (absl::EndsWith(key, suffix)) {
      const std::string owner = key.substr(0, key.size() - suffix.size());
      if (!stored.records.contains(owner)) Forget(key, "");
      continue;
    }
    absl::StatusOr<JobRecord> record = ParseJobRecord(value);
    if (record.ok() && RecordKey(record->id) != key) {
      record = absl::DataLossError("it is the record of another job");
    }
    if (!record.ok()) {
      Forget(key, std::string(record.status().message()));
      Forget(absl::StrCat(key, suffix), "");
      continue;
    }
    const auto declaration = stored.records.find(DeclarationKey(record->id));
    auto job = RestoreJob(
        *record, declaration == stored.records.end() ? nullptr : &declaration->second,
        reader);
    if (!job.ok()) {
      Forget(key, std::string(job.status().message()));
      Forget(DeclarationKey(record->id), "");
      continue;
    }
    for (const RecordedServer& server : record->servers) {
      absent_[server.identity.server] = {server.identity.incarnation, server.name};
    }
    counters_.epochs.AtLeast(record->name, record->epoch.epoch);
    first_outbox_.Log(
        absl::StrCat("job '", record->name, "' runs in epoch ", record->epoch.epoch,
                     "; waiting for ", record->servers.size(), " servers and ",
                     record->epoch.members.size(), " workers to come back"));
    jobs_[record->name] = *std::move(job);
  }
}

absl::StatusOr<std::unique_ptr<Job>> Coordinator::Impl::RestoreJob(
    const JobRecord& record, const std::string* declaration,
    const DeclarationReader& reader) {
  if (declaration == nullptr || reader.digest(*declaration) != record.digest) {
    return absl::DataLossError("its declaration is lost or damaged");
  }
  SYNCLINE_ASSIGN_OR_RETURN(JobSpec spec, reader.parse(*declaration));
  const Declaration declared = {record.digest,
                                std::make_shared<const std::string>(*declaration)};
  SYNCLINE_ASSIGN_OR_RETURN(auto job, MakeDeclaredJob(declared, std::move(spec)));
  SYNCLINE_RETURN_IF_ERROR(CheckRecord(record, job->spec));
  std::vector<uint32_t> shards;
  for (const RecordedServer& server : record.servers) {
    shards.push_back(static_cast<uint32_t>(server.shard_addresses.size()));
  }
  SYNCLINE_ASSIGN_OR_RETURN(JobPlacement placement, PlaceJob(job->spec, shards));
  if (SumOf(placement) != record.placement_sum) {
    return absl::FailedPreconditionError(
        "this version of Syncline places blocks on other shards than the version that "
        "began the job");
  }
  return Job::Restore(record, std::move(job),
                      std::make_shared<const JobPlacement>(std::move(placement)),
                      JobContext{options_, counters_, outbox_});
}

void Coordinator::Impl::Forget(const std::string& record, const std::string& why) {
  first_outbox_.Store(record, nullptr);
  if (why.empty()) return;
  first_outbox_.Log(
      absl::StrCat("the job of record ", record, " cannot continue and ends: ", why),
      LogReason::Level::kError);
}

void Coordinator::Impl::OnStart() {
  started_at_ = now_;
  outbox_.Persist();
  outbox_.Add(CoordinatorEvent{
      .kind = EventKind::kCoordinator,
      .what = term_ == 1
                  ? "the coordinator was started"
                  : absl::StrCat("the coordinator was restarted, life ", term_, "; ",
                                 jobs_.size(),
                                 jobs_.size() == 1 ? " job goes on" : " jobs go on")});
  outbox_.AddAll(first_outbox_.Take());
}

// ---- Members that come back ----

bool Coordinator::Impl::IsAbsent(const ServerHello& hello) const {
  if (!hello.identity) return false;
  const auto absent = absent_.find(hello.identity->server);
  return absent != absent_.end() && absent->second.name == hello.name &&
         absent->second.incarnation == hello.identity->incarnation;
}

// Loses the server of this name that was restarted while the coordinator was away.
void Coordinator::Impl::LoseAbsent(const std::string& name) {
  const auto absent = std::ranges::find_if(
      absent_, [&](const auto& entry) { return entry.second.name == name; });
  if (absent == absent_.end()) return;
  const uint32_t number = absent->first;
  absent_.erase(absent);
  SayOfServers(absl::StrCat("server ", number, " (", name,
                            ") was restarted while the coordinator was away"),
               LogReason::Level::kWarning);
  for (const auto& [job_name, job] : jobs_) job->OnServerLost({number});
}

void Coordinator::Impl::ForgetAbsent() {
  std::erase_if(absent_, [this](const auto& entry) {
    return std::ranges::none_of(
        jobs_, [&](const auto& job) { return job.second->AwaitsServer(entry.first); });
  });
}

void Coordinator::Impl::OnServerBack(const Server& server, const ServerHello& hello) {
  const bool is_back = absent_.erase(server.number) > 0;
  std::set<uint32_t> held;
  for (const HeldJob& one : hello.held) {
    held.insert(one.job);
    Job* job = is_back ? FindJob(one.job) : nullptr;
    if (job == nullptr) {
      outbox_.Send(server.connection,
                   DropJob{one.job, "the coordinator no longer has this job"});
    } else {
      job->OnServerBack({.server = server.number,
                         .connection = server.connection,
                         .name = server.name,
                         .shard_addresses = server.shard_addresses,
                         .feeds_two_backups = server.feeds_two_backups},
                        one);
    }
  }
  for (const auto& [name, job] : jobs_) {
    if (!held.contains(job->id())) job->OnServerLost({server.number});
  }
}

void Coordinator::Impl::Return(ConnectionId connection, const WorkerHello& hello) {
  const auto known = jobs_.find(hello.job);
  if (known == jobs_.end() || known->second->IsOver()) {
    return Refuse(
        connection,
        WithFailure(absl::UnavailableError(absl::StrCat(
                        "job '", hello.job, "' is no longer running; start it again")),
                    Failure::kRetryable));
  }
  const absl::Status is_back = known->second->Return(connection, hello, now_);
  if (!is_back.ok()) return Refuse(connection, is_back);
  speakers_[connection] = {
      .kind = Speaker::kWorker, .job = known->second->id(), .rank = hello.rank};
}

}  // namespace syncline
