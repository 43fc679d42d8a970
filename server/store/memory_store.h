// A StateStore in memory, lost with its process; for tests and the simulation.
#pragma once

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/store/state_store.h"

namespace syncline {

class MemoryStore final : public StateStore {
 public:
  absl::StatusOr<std::optional<Versioned>> Load(std::string_view key) override;
  absl::StatusOr<int64_t> CompareAndSet(std::string_view key, int64_t expected_version,
                                        std::string_view value) override;
  absl::Status Erase(std::string_view key, int64_t expected_version) override;
  absl::StatusOr<std::map<std::string, Versioned>> List(std::string_view prefix) override;

 private:
  absl::Mutex mutex_;
  std::map<std::string, Versioned, std::less<>> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
