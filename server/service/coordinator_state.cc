// What of the coordinator outlives it: read when it starts, written before it acts.
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/coordinator/job_record.h"
#include "server/service/coordinator_service.h"
#include "server/service/job_convert.h"

namespace syncline {

// What it begins with is stored before any member is heard: its term, above all.
absl::Status CoordinatorService::Restore() {
  SYNCLINE_ASSIGN_OR_RETURN(const auto state, options_.store->Load(kStateKey));
  SYNCLINE_ASSIGN_OR_RETURN(const auto records, options_.store->List(kJobRecords));
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
      options_.log.Info(reason->text, {{"term", term}});
    if (const auto* persist = std::get_if<PersistState>(&output)) {
      SYNCLINE_RETURN_IF_ERROR(
          StoreNow({kStateKey, std::make_shared<const std::string>(persist->state)}));
    }
    if (const auto* record = std::get_if<StoreRecord>(&output))
      SYNCLINE_RETURN_IF_ERROR(StoreNow(*record));
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

bool CoordinatorService::Store(const StoreRecord& record) {
  const absl::Status stored = StoreNow(record);
  if (stored.ok()) return true;
  options_.log.Error("the coordinator's state could not be stored, it stops",
                     {{"error", std::string(stored.message())}});
  StopWith(Farewell("the coordinator cannot store its state"));
  options_.on_fatal(stored);
  return false;
}

}  // namespace syncline
