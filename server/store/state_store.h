// Durable storage for the coordinator: the epoch, the jobs and their settings, as a few
// named values that change by compare-and-set.
//
// Each key has its own version, which starts at 1 and grows by one with every change. A
// writer says which version it has seen. If another writer was faster, it gets Aborted,
// and must load the value and decide again. So two coordinators can never both believe
// that they began the same epoch.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto epoch, store.Load("epoch"));
//   const int64_t seen = epoch.has_value() ? epoch->version : kAbsent;
//   SYNCLINE_RETURN_IF_ERROR(store.CompareAndSet("epoch", seen, "8").status());
//
// A change that was answered with OK is durable: it survives the end of the process and a
// power failure.
//
// Thread safety: all methods may be called from any thread.
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

// The coordinator writes its state on every epoch, and such a write must take far less
// time than a heartbeat. The largest value is the declaration of a job, which is written
// once.
inline constexpr size_t kMaxStateValueBytes = size_t{64} << 20;

struct Versioned {
  int64_t version = kAbsent;
  std::string value;  // any bytes
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  // Returns the latest value, or nullopt if the key does not exist.
  virtual absl::StatusOr<std::optional<Versioned>> Load(std::string_view key) = 0;

  // Sets `key` if its version is `expected_version`, and returns the new version. Fails
  // with Aborted if it has another version, with InvalidArgument beyond
  // kMaxStateValueBytes, and with Failure::kStateUnusable if the storage fails. Nothing
  // changes on an error.
  virtual absl::StatusOr<int64_t> CompareAndSet(std::string_view key,
                                                int64_t expected_version,
                                                std::string_view value) = 0;

  // Removes `key` if its version is `expected_version`. Fails as CompareAndSet does. A
  // key that is set again starts at version 1.
  virtual absl::Status Erase(std::string_view key, int64_t expected_version) = 0;

  // Returns all keys that begin with `prefix`, with their values.
  virtual absl::StatusOr<std::map<std::string, Versioned>> List(
      std::string_view prefix) = 0;
};

// Errors and checks that all implementations share.
absl::Status VersionConflict(std::string_view key, int64_t expected_version,
                             int64_t found_version);
absl::Status CheckValueSize(std::string_view key, std::string_view value);

}  // namespace syncline
