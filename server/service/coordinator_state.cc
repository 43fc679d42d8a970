// The coordinator's stored state: it is read at the start, and written before anything
// that depends on it is sent. Also how the service ends when it may no longer act.
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/synchronization/mutex.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/coordinator/job_record.h"
#include "server/service/coordinator_service.h"
#include "server/service/job_convert.h"

namespace syncline {
namespace {

// Events of a job are written as a whole each time, and the write waits for the disk. So
// they are not written more often than this.
constexpr absl::Duration kKeepEventsEvery = absl::Milliseconds(200);

}  // namespace

// Stores the state with which the machine starts, above all its term, before it takes
// messages of members.
absl::Status CoordinatorService::Restore() {
  SYNCLINE_ASSIGN_OR_RETURN(const auto state, options_.store->Load(kStateKey));
  SYNCLINE_ASSIGN_OR_RETURN(const auto records, options_.store->List(kJobRecords));
  SYNCLINE_RETURN_IF_ERROR(RestoreEvents());
  CoordinatorOutputs outputs;
  uint64_t term = 0;
  {
    absl::MutexLock lock(&machine_mutex_);
    StoredState stored;
    if (state) stored_versions_[kStateKey] = state->version;
    for (const auto& [key, record] : records) {
      stored_versions_[key] = record.version;
      if (options_.comes_back) stored.records[key] = record.value;
    }
    if (state) {
      stored.state = state->value;
      SYNCLINE_RETURN_IF_ERROR(coordinator_.Restore(stored, WireDeclarations()));
    }
    term = coordinator_.term();
    outputs = coordinator_.Apply(Start{}, absl::ZeroDuration());
  }
  {
    absl::MutexLock lock(&mutex_);
    if (options_.comes_back) links_.SetTerm(term);
  }
  for (const CoordinatorOutput& output : outputs) {
    if (const auto* reason = std::get_if<LogReason>(&output))
      Log(*reason, {{"term", term}});
    if (const auto* persist = std::get_if<PersistState>(&output)) {
      SYNCLINE_RETURN_IF_ERROR(
          StoreNow({kStateKey, std::make_shared<const std::string>(persist->state)}));
    }
    if (const auto* record = std::get_if<StoreRecord>(&output))
      SYNCLINE_RETURN_IF_ERROR(StoreNow(*record));
    if (const auto* event = std::get_if<CoordinatorEvent>(&output)) events_.Add(*event);
  }
  for (const auto& [key, record] : records) {
    if (!options_.comes_back) SYNCLINE_RETURN_IF_ERROR(StoreNow({key, nullptr}));
  }
  return absl::OkStatus();
}

absl::Status CoordinatorService::StoreNow(const StoreRecord& record) {
  const auto known = stored_versions_.find(record.key);
  const int64_t version = known == stored_versions_.end() ? kAbsent : known->second;
  if (record.value == nullptr) {
    if (version == kAbsent) return absl::OkStatus();
    SYNCLINE_RETURN_IF_ERROR(options_.store->Erase(record.key, version));
    stored_versions_.erase(record.key);
    return absl::OkStatus();
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      stored_versions_[record.key],
      options_.store->CompareAndSet(record.key, version, *record.value));
  return absl::OkStatus();
}

absl::Status CoordinatorService::RestoreEvents() {
  SYNCLINE_ASSIGN_OR_RETURN(const auto records, options_.store->List(EventLog::kRecords));
  for (const auto& [key, record] : records) {
    stored_versions_[key] = record.version;
    const absl::Status restored = events_.Restore(key, record.value);
    if (restored.ok()) continue;
    options_.log.Warning("the events of a job are lost",
                         {{"record", key}, {"reason", std::string(restored.message())}});
  }
  return absl::OkStatus();
}

// Events are only for people. Therefore they are shown even if they cannot be stored, and
// a failure stops nothing.
void CoordinatorService::KeepEvents(Keep when) {
  const absl::Duration now = clock_.Now();
  if (when == Keep::kWhenDue && now - events_kept_at_ < kKeepEventsEvery) return;
  absl::Status kept;
  for (const StoreRecord& record : events_.Changes()) kept.Update(StoreNow(record));
  events_.Show();
  events_kept_at_ = now;
  const bool is_new = std::exchange(events_are_kept_, kept.ok());
  if (kept.ok() || !is_new) return;
  options_.log.Warning(
      "events could not be stored; they will be lost when the coordinator restarts",
      {{"error", std::string(kept.message())}});
}

bool CoordinatorService::Store(const StoreRecord& record) {
  const absl::Status stored = StoreNow(record);
  if (stored.ok()) return true;
  options_.log.Error("the coordinator's state could not be stored; the coordinator stops",
                     {{"error", std::string(stored.message())}});
  if (StopWith(Farewell("the coordinator cannot store its state"))) {
    options_.on_fatal(stored);
  }
  return false;
}

bool CoordinatorService::StopWith(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(stopped_, true)) return false;
  changed_.SignalAll();
  links_.CloseAll(status);
  return true;
}

void CoordinatorService::StepDown(const absl::Status& why) {
  if (!StopWith(Farewell("this coordinator does not lead any more"))) return;
  options_.log.Error("this coordinator steps down",
                     {{"reason", std::string(why.message())}});
  options_.on_fatal(why);
}

bool CoordinatorService::StillLeads() {
  if (options_.leads == nullptr || options_.leads()) return true;
  StepDown(WithFailure(
      absl::UnavailableError(
          "this coordinator is no longer the leader; start it again, as a standby"),
      Failure::kRetryable));
  return false;
}

}  // namespace syncline
