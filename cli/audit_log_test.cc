#include "cli/audit_log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

mode_t ModeOfLog(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return info.st_mode & 0777;
}

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// While it lives, files of this process cannot grow beyond a number of bytes, as on a
// full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }

 private:
  void (*signal_)(int);
  rlimit before_ = {};
};

TEST(AuditLog, IsForItsUserAlone) {
  const TempDirectory directory;
  const std::string path = directory.File("audit.json");
  std::ofstream(path) << "{}\n";
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  const auto audit = AuditLog::Open(path, {});
  ASSERT_TRUE(audit.ok()) << audit.status();
  (*audit)->logger().Info("started");
  EXPECT_EQ(ModeOfLog(path), 0600u);
  EXPECT_THAT(LinesOf(path), ElementsAre("{}", HasSubstr("started")));
}

// Root may start it with a device as its log, which other programs use too.
TEST(AuditLog, LeavesTheModeOfWhatIsNoFile) {
  const TempDirectory directory;
  const std::string path = directory.File("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  EXPECT_EQ(FailureOf(AuditLog::Open(path, {}).status()), Failure::kUsage)
      << "nobody reads";
  const UniqueFd reader(open(path.c_str(), O_RDONLY | O_NONBLOCK));
  const auto audit = AuditLog::Open(path, {});
  ASSERT_TRUE(audit.ok()) << audit.status();
  EXPECT_EQ(ModeOfLog(path), 0666u);
  (*audit)->logger().Info("started");
  char bytes[200] = {};
  ASSERT_GT(read(reader.get(), bytes, sizeof(bytes) - 1), 0);
  EXPECT_THAT(std::string(bytes), HasSubstr("started"));
  EXPECT_EQ(FailureOf(AuditLog::Open(directory.path(), {}).status()), Failure::kUsage);
}

TEST(AuditLog, CountsWhatItLosesAndSaysSoOnce) {
  const TempDirectory directory;
  const std::string path = directory.File("audit.json");
  int lost = 0;
  std::vector<std::string> changes;
  const auto audit =
      AuditLog::Open(path, {.on_lost = [&] { ++lost; },
                            .on_change =
                                [&](const std::string& reason, uint64_t lines) {
                                  changes.push_back(absl::StrCat(
                                      reason.empty() ? "again" : "lost", " ", lines));
                                }});
  ASSERT_TRUE(audit.ok()) << audit.status();
  const Logger& log = (*audit)->logger();
  log.Info("first");
  EXPECT_THAT(changes, IsEmpty());
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  {
    const FileSizeLimit full(static_cast<rlim_t>(info.st_size) + 10);
    for (int i = 0; i < 3; ++i) log.Info("nobody reads this");
  }
  EXPECT_EQ(lost, 3);
  EXPECT_THAT(changes, ElementsAre("lost 1"));
  log.Info("last");
  log.Info("very last");
  EXPECT_EQ(lost, 3);
  EXPECT_THAT(changes, ElementsAre("lost 1", "again 3"));
  const std::vector<std::string> lines = LinesOf(path);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1].size(), 10u) << "cut off, on a line of its own";
  EXPECT_THAT(lines[2], HasSubstr("\"last\""));
}

}  // namespace
}  // namespace syncline
