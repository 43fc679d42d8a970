// A key-value store that all members of a group can access, through which they find each
// other. torch's Store is one. MemoryStore is for ranks that are threads of one process.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/steady_condition.h"

namespace syncline::collective {

// Thread safety: any thread.
class Store {
 public:
  virtual ~Store() = default;

  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is set. Fails with DeadlineExceeded after `timeout`.
  virtual absl::StatusOr<std::string> Get(const std::string& key,
                                          absl::Duration timeout) = 0;
};

class MemoryStore final : public Store {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override;

 private:
  absl::Mutex mutex_;
  SteadyCondition changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
};

// Stores keys as files of a folder that all members can access, for processes of one
// host.
class FolderStore final : public Store {
 public:
  explicit FolderStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override;

 private:
  const std::string folder_;
};

}  // namespace syncline::collective
