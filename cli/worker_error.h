// Reads the error file of a worker's program. TORCHELASTIC_ERROR_FILE names the file;
// torch's `record` writes it, and so can other programs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace syncline {

struct WorkerError {
  std::string message;                 // one line, such as "ValueError: no data"
  std::vector<std::string> traceback;  // lines; empty when the file has none
  std::filesystem::file_time_type written_at;
};

// Returns nullopt when there is no file, or when it does not have torch's format.
std::optional<WorkerError> ReadWorkerError(const std::string& path);

// Copies the error file to the one that this launcher's own environment names, if any. As
// in torchrun this supports nested launchers.
void PassOnWorkerError(const std::string& path);

}  // namespace syncline
