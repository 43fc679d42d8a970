// What outlives a coordinator, and how the next one goes on with it.
#include <algorithm>
#include <iterator>
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
// No job makes so many between two heartbeats, and a checkpoint is ordered for soon.
constexpr uint64_t kMostStepsAhead = 1'000'000'000;
constexpr size_t kMaxUnusedNames = 1024;  // of jobs, and of servers

// What a job is made of without looking again: a record that cannot be true is not made
// into one, so that it ends here and not the coordinator.
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
      return absl::DataLossError("its record has servers without shards, or twice");
    }
  }
  for (const MemberRecord& member : record.epoch.members) {
    if (member.rank >= kMaxWorkers) {
      return absl::DataLossError(absl::StrCat("its record has a rank ", member.rank));
    }
  }
  // No checkpoint would be made before that step.
  if (record.last_cut > record.step && record.last_cut - record.step > kMostStepsAhead) {
    return absl::DataLossError(absl::StrCat("its record has a checkpoint of step ",
                                            record.last_cut, " at step ", record.step));
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
  if (state.value("version", 0) != kStateVersion)
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

// Members with another failure timeout are refused, and their jobs end. They wait for a
// coordinator that does not start.
absl::Status Coordinator::Impl::CheckFormerTimeout() const {
  const absl::Duration timeout = options_.timeouts.failure_timeout;
  if (jobs_.empty() || former_timeout_.value_or(timeout) == timeout) {
    return absl::OkStatus();
  }
  return WithFailure(
      absl::FailedPreconditionError(absl::StrCat(
          jobs_.size(), " jobs run with --failure-timeout ",
          absl::FormatDuration(*former_timeout_), ", and this one has ",
          absl::FormatDuration(timeout),
          ", which would end them: start the coordinator with theirs, and with another "
          "one after their ends; or choose an empty --state-dir to give them up")),
      Failure::kUsage);
}

// A job that cannot be read ends; the others go on.
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
    first_outputs_.push_back(LogReason{
        absl::StrCat("job '", record->name, "' runs in epoch ", record->epoch.epoch,
                     "; waiting for ", record->servers.size(), " servers and ",
                     record->epoch.members.size(), " workers to come back")});
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
        "this version of Syncline places its blocks elsewhere than the one that began "
        "it");
  }
  return Job::Restore(record, std::move(job),
                      std::make_shared<const JobPlacement>(std::move(placement)),
                      JobContext{options_, counters_});
}

void Coordinator::Impl::Forget(const std::string& record, const std::string& why) {
  first_outputs_.push_back(StoreRecord{record, nullptr});
  if (why.empty()) return;
  first_outputs_.push_back(LogReason{
      absl::StrCat("the job of record ", record, " cannot go on, and ends: ", why),
      LogReason::Level::kError});
}

void Coordinator::Impl::OnStart() {
  started_at_ = now_;
  outputs_.push_back(PersistState{});
  outputs_.push_back(CoordinatorEvent{
      .kind = EventKind::kCoordinator,
      .what = term_ == 1
                  ? "the coordinator began"
                  : absl::StrCat("the coordinator was started anew, life ", term_, "; ",
                                 jobs_.size(),
                                 jobs_.size() == 1 ? " job goes on" : " jobs go on")});
  std::ranges::move(std::exchange(first_outputs_, {}), std::back_inserter(outputs_));
}

// ---- Members that come back ----

bool Coordinator::Impl::IsAbsent(const ServerHello& hello) const {
  if (!hello.identity) return false;
  const auto absent = absent_.find(hello.identity->server);
  return absent != absent_.end() && absent->second.name == hello.name &&
         absent->second.incarnation == hello.identity->incarnation;
}

// It was started anew while the coordinator was away.
void Coordinator::Impl::LoseAbsent(const std::string& name) {
  const auto absent = std::ranges::find_if(
      absent_, [&](const auto& entry) { return entry.second.name == name; });
  if (absent == absent_.end()) return;
  const uint32_t number = absent->first;
  absent_.erase(absent);
  SayOfServers(absl::StrCat("server ", number, " (", name,
                            ") was started anew while the coordinator was away"),
               LogReason::Level::kWarning);
  for (const auto& [job_name, job] : jobs_) job->OnServerLost({number}, outputs_);
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
      outputs_.push_back(ToMember{server.connection,
                                  DropJob{one.job, "the coordinator knows it no more"}});
    } else {
      job->OnServerBack(server.number, server.connection, one, outputs_);
    }
  }
  for (const auto& [name, job] : jobs_) {
    if (!held.contains(job->id())) job->OnServerLost({server.number}, outputs_);
  }
}

void Coordinator::Impl::Return(ConnectionId connection, const WorkerHello& hello) {
  const auto known = jobs_.find(hello.job);
  if (known == jobs_.end() || known->second->IsOver()) {
    return Refuse(
        connection,
        WithFailure(absl::UnavailableError(absl::StrCat(
                        "job '", hello.job, "' does not run any more; start it again")),
                    Failure::kRetryable));
  }
  const absl::Status is_back = known->second->Return(connection, hello, now_, outputs_);
  if (!is_back.ok()) return Refuse(connection, is_back);
  speakers_[connection] = {
      .kind = Speaker::kWorker, .job = known->second->id(), .rank = hello.rank};
}

}  // namespace syncline
