// What the coordinator must not forget: the epoch, the jobs and their settings, as a few
// named values that change by compare-and-set.
//
// Each key has its own version, which starts at 1 and grows by one with every change. A
// writer says which version it has seen; when another writer was faster it gets Aborted,
// and must load and decide anew. So two coordinators can never both believe that they
// began the same epoch.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto epoch, store.Load("epoch"));
//   const int64_t seen = epoch.has_value() ? epoch->version : kAbsent;
//   SYNCLINE_RETURN_IF_ERROR(store.CompareAndSet("epoch", seen, "8").status());
//
// A change that was answered with OK is durable: it survives the process and the power
// supply. Thread safety: all methods may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

// The version to expect of a key that does not exist yet.
inline constexpr int64_t kAbsent = 0;

// The coordinator writes its state on every epoch: keep that write far below a heartbeat.
// The largest value is the declaration of a job, written once.
inline constexpr size_t kMaxStateValueBytes = size_t{64} << 20;

struct Versioned {
  int64_t version = kAbsent;
  std::string value;  // any bytes
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  // The latest value, or nullopt when the key was never set.
  virtual absl::StatusOr<std::optional<Versioned>> Load(std::string_view key) = 0;

  // Sets `key` if its version is `expected_version`, and returns the new version. Aborted
  // when it is another one (nothing changes); InvalidArgument beyond kMaxStateValueBytes;
  // Failure::kStateUnusable when the storage fails (nothing changes then either).
  virtual absl::StatusOr<int64_t> CompareAndSet(std::string_view key,
                                                int64_t expected_version,
                                                std::string_view value) = 0;

  // Forgets `key` if its version is `expected_version`; errors as CompareAndSet. A key
  // that is set again begins at version 1.
  virtual absl::Status Erase(std::string_view key, int64_t expected_version) = 0;

  // All keys that begin so, with their values.
  virtual absl::StatusOr<std::map<std::string, Versioned>> List(
      std::string_view prefix) = 0;
};

// The errors that every implementation gives.
absl::Status VersionConflict(std::string_view key, int64_t expected_version,
                             int64_t found_version);
absl::Status CheckValueSize(std::string_view key, std::string_view value);

}  // namespace syncline
