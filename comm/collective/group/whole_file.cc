#include "comm/collective/group/whole_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace syncline::collective {

std::error_code ReplaceFile(const std::string& path, const std::string& fresh,
                            const std::string& contents) {
  std::ofstream file(fresh, std::ios::binary);
  file << contents;
  file.close();
  std::error_code error;
  if (!file) {
    error = std::error_code(errno, std::generic_category());
  } else {
    std::filesystem::rename(fresh, path, error);
  }
  std::error_code ignored;
  if (error) std::filesystem::remove(fresh, ignored);
  return error;
}

}  // namespace syncline::collective
