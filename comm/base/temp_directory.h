// A temporary directory for a test. It is removed at the end with everything in it.
//
//   TempDirectory directory;
//   std::ofstream(directory.File("job.yaml")) << "workers: 2\n";
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "comm/base/check.h"

namespace syncline {

class TempDirectory {
 public:
  TempDirectory()
      : path_(
            (std::filesystem::temp_directory_path() / "syncline-test-XXXXXX").string()) {
    SYNCLINE_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string File(std::string_view name) const {
    return (std::filesystem::path(path_) / name).string();
  }

 private:
  std::string path_;
};

}  // namespace syncline
