#include "tests/golden/golden_file.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "comm/base/check.h"
#include "gtest/gtest.h"

namespace syncline {

GoldenFile::GoldenFile(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t');
    SYNCLINE_CHECK(tab != std::string::npos);
    all_[line.substr(0, tab)] = absl::HexStringToBytes(line.substr(tab + 1));
  }
}

std::string GoldenFile::Golden(const std::string& name, std::string_view bytes) {
  const auto found = all_.find(name);
  if (found != all_.end()) return found->second;
  all_[name] = std::string(bytes);
  Write();
  ADD_FAILURE() << "'" << name << "' is new in " << path_
                << ": look at the change of the file, and commit it";
  return all_[name];
}

std::string GoldenFile::Same(const std::string& name, std::string_view bytes) {
  std::string golden = Golden(name, bytes);
  if (golden == bytes) return golden;
  const auto [at, other] = std::ranges::mismatch(golden, bytes);
  ADD_FAILURE() << "'" << name << "' of " << path_ << " had " << golden.size()
                << " bytes, and now has " << bytes.size()
                << "; the first difference is at byte " << at - golden.begin();
  return golden;
}

void GoldenFile::Write() const {
  std::ofstream file(path_);
  for (const auto& [name, bytes] : all_) {
    file << name << '\t' << absl::BytesToHexString(bytes) << '\n';
  }
}

}  // namespace syncline
