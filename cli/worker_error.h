// What a worker's program says of its own end: the file that TORCHELASTIC_ERROR_FILE
// names, which torch's `record` writes, and whatever does as it does.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace syncline {

struct WorkerError {
  std::string message;                 // in one line: "ValueError: no data"
  std::vector<std::string> traceback;  // its lines; empty when the file has none
  std::filesystem::file_time_type written_at;
};

// nullopt when there is none, or when the file is not what torch writes.
std::optional<WorkerError> ReadWorkerError(const std::string& path);

// To the file that whoever started this launcher has named, if anybody has: as torchrun
// does, so that launchers may be nested.
void PassOnWorkerError(const std::string& path);

}  // namespace syncline
