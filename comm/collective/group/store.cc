#include "comm/collective/group/store.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "comm/base/env.h"
#include "comm/collective/group/whole_file.h"

namespace syncline::collective {
namespace {

absl::Status NobodySet(const std::string& key, absl::Duration timeout) {
  return absl::DeadlineExceededError(
      absl::StrCat("no rank has set '", key, "' within ", absl::FormatDuration(timeout),
                   ": has the rank that sets it been started?"));
}

// Turns a key into a file name.
std::string FileName(std::string key) {
  std::replace(key.begin(), key.end(), '/', '@');
  return key;
}

}  // namespace

absl::Status MemoryStore::Set(const std::string& key, const std::string& value) {
  absl::MutexLock lock(&mutex_);
  values_[key] = value;
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStore::Get(const std::string& key,
                                             absl::Duration timeout) {
  const SteadyClock clock;
  absl::MutexLock lock(&mutex_);
  while (true) {
    if (const auto found = values_.find(key); found != values_.end()) {
      return found->second;
    }
    if (!changed_.WaitUntil(mutex_, clock, timeout)) return NobodySet(key, timeout);
  }
}

absl::Status FolderStore::Set(const std::string& key, const std::string& value) {
  const std::string path = absl::StrCat(folder_, "/", FileName(key));
  const std::string fresh = path + ".fresh";
  const std::error_code error = ReplaceFile(path, fresh, value);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "cannot write ", path, ": ", error.message(),
      "; the folder must exist, be writable and have room on all members' hosts"));
}

absl::StatusOr<std::string> FolderStore::Get(const std::string& key,
                                             absl::Duration timeout) {
  const SteadyClock clock;
  const std::string path = absl::StrCat(folder_, "/", FileName(key));
  while (true) {
    if (std::ifstream file(path, std::ios::binary); file) {
      return std::string(std::istreambuf_iterator<char>(file), {});
    }
    if (clock.Now() >= timeout) return NobodySet(key, timeout);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace syncline::collective
