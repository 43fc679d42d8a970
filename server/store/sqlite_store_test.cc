#include "server/store/sqlite_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "comm/base/unique_fd.h"
#include "gmock/gmock.h"
#include "server/store/state_store_contract.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SqliteInOwnDirectory final : public StateStore {
 public:
  SqliteInOwnDirectory() : store_(*OpenSqliteStore(directory_.path())) {}
  absl::StatusOr<std::optional<Versioned>> Load(std::string_view key) override {
    return store_->Load(key);
  }
  absl::StatusOr<int64_t> CompareAndSet(std::string_view key, int64_t expected,
                                        std::string_view value) override {
    return store_->CompareAndSet(key, expected, value);
  }
  absl::Status Erase(std::string_view key, int64_t expected) override {
    return store_->Erase(key, expected);
  }
  absl::StatusOr<std::map<std::string, Versioned>> List(
      std::string_view prefix) override {
    return store_->List(prefix);
  }

 private:
  TempDirectory directory_;
  std::unique_ptr<StateStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Sqlite, StateStoreContract,
                         testing::Values(StateStoreFactory([] {
                           return std::make_unique<SqliteInOwnDirectory>();
                         })));

void ExpectUnusable(const absl::Status& status, const std::string& path,
                    const std::string& reason) {
  EXPECT_EQ(FailureOf(status), Failure::kStateUnusable) << status;
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr(path));
  EXPECT_THAT(message, HasSubstr(reason));
  EXPECT_THAT(message, HasSubstr("; ")) << "names no fix";
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

TEST(SqliteStore, RemembersAcrossARestart) {
  TempDirectory directory;
  {
    auto store = OpenSqliteStore(directory.path());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->CompareAndSet("epoch", kAbsent, "7").ok());
  }
  auto store = OpenSqliteStore(directory.path());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*(*store)->Load("epoch"))->value, "7");
  EXPECT_EQ(*(*store)->CompareAndSet("epoch", 1, "8"), 2);
}

TEST(SqliteStore, KeepsEveryAnsweredChangeWhenItsProcessIsKilled) {
  TempDirectory directory;
  const pid_t child = fork();
  if (child == 0) {
    auto store = OpenSqliteStore(directory.path());
    for (int64_t version = 0; version < 20; ++version) {
      if (!(*store)->CompareAndSet("epoch", version, absl::StrCat(version + 1)).ok())
        _exit(1);
    }
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  auto store = OpenSqliteStore(directory.path());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*(*store)->Load("epoch"))->value, "20");
}

TEST(SqliteStore, MakesAPrivateDirectory) {
  TempDirectory directory;
  const std::string nested = directory.path() + "/a/b";
  ASSERT_TRUE(OpenSqliteStore(nested).ok());
  struct stat info = {};
  ASSERT_EQ(stat(nested.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

// The file holds session keys, and a directory that an operator made is often open to
// all.
TEST(SqliteStore, MakesPrivateFilesInAnOpenDirectory) {
  const TempDirectory directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  const mode_t before = umask(0);
  const auto store = OpenSqliteStore(directory.path());
  umask(before);
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->CompareAndSet("epoch", kAbsent, "7").ok());
  EXPECT_EQ(ModeOf(directory.File("state.db")), 0600u);
  EXPECT_EQ(ModeOf(directory.File("state.db-wal")), 0600u);
}

TEST(SqliteStore, MakesAFilePrivateThatOthersCouldRead) {
  const TempDirectory directory;
  const std::string path = directory.File("state.db");
  const auto open = [&] {
    std::ostringstream lines;
    const auto store =
        OpenSqliteStore(directory.path(), Logger::Create({.stream = &lines}));
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(ModeOf(path), 0600u);
    return lines.str();
  };
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  EXPECT_EQ(open(), "");
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(open(), HasSubstr("chmod 700"));
  EXPECT_EQ(open(), "");
  // The directory was private, so no other user could reach the file.
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  ASSERT_EQ(chmod(directory.path().c_str(), 0700), 0);
  EXPECT_EQ(open(), "");
}

TEST(SqliteStore, KeepsASecondCoordinatorOut) {
  TempDirectory directory;
  auto first = OpenSqliteStore(directory.path());
  ASSERT_TRUE(first.ok());
  ExpectUnusable(OpenSqliteStore(directory.path()).status(), directory.path(),
                 "in use by another coordinator");
  EXPECT_TRUE((*first)->CompareAndSet("epoch", kAbsent, "1").ok());
  first->reset();
  EXPECT_TRUE(OpenSqliteStore(directory.path()).ok());
}

TEST(SqliteStore, SaysThatTheDirectoryIsNotWritable) {
  // Root can write everywhere, so these paths are ones in which no file can exist.
  ExpectUnusable(OpenSqliteStore("/dev/null/state").status(), "/dev/null/state",
                 "Not a directory");
  ExpectUnusable(OpenSqliteStore("/proc/state").status(), "/proc/state", "--state-dir");
  TempDirectory directory;
  std::filesystem::create_directory(directory.path() + "/state.db");
  ExpectUnusable(OpenSqliteStore(directory.path()).status(), directory.path(),
                 "cannot write");
}

TEST(SqliteStore, SaysThatTheFileIsDamaged) {
  TempDirectory directory;
  const std::string path = directory.path() + "/state.db";
  std::ofstream(path) << std::string(8192, 'x');
  ExpectUnusable(OpenSqliteStore(directory.path()).status(), path, "damaged");
}

// A full disk or a careless redirection leaves an empty file. Its counters are lost, and
// with them the promise that no epoch is used twice.
TEST(SqliteStore, RefusesAnEmptyFile) {
  const TempDirectory directory;
  const std::string path = directory.File("state.db");
  std::ofstream(path).close();
  ExpectUnusable(OpenSqliteStore(directory.path()).status(), path, "is empty");
}

// SQLite would apply the log to the next file, or drop it beside an empty one.
TEST(SqliteStore, RefusesALogWithoutItsFile) {
  const TempDirectory directory;
  const std::string path = directory.File("state.db");
  {
    const auto store = OpenSqliteStore(directory.path());
    ASSERT_TRUE((*store)->CompareAndSet("epoch", kAbsent, "7").ok());
    std::filesystem::copy(path + "-wal", path + "-kept");  // as kill -9 leaves it
  }
  std::filesystem::rename(path + "-kept", path + "-wal");
  std::filesystem::resize_file(path, 0);
  ExpectUnusable(OpenSqliteStore(directory.path()).status(), path, "is empty");
  std::filesystem::remove(path);
  ExpectUnusable(OpenSqliteStore(directory.path()).status(), path,
                 "a part of it, is not");
  EXPECT_FALSE(std::filesystem::exists(path));
  std::filesystem::remove(path + "-wal");
  EXPECT_TRUE(OpenSqliteStore(directory.path()).ok());
}

// Each limit ends the first start at another byte of what it writes.
TEST(SqliteStore, BeginsAnewAfterAFirstStartThatWasCutShort) {
  for (const rlim_t bytes : {0, 8, 600, 4096, 5000, 8192, 12288, 16384}) {
    const TempDirectory directory;
    const pid_t child = fork();
    if (child == 0) {
      const rlimit no_core = {0, 0};
      const rlimit most = {bytes, bytes};
      setrlimit(RLIMIT_CORE, &no_core);
      setrlimit(RLIMIT_FSIZE, &most);
      (void)OpenSqliteStore(directory.path());
      raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto store = OpenSqliteStore(directory.path());
    ASSERT_TRUE(store.ok()) << bytes << " bytes: " << store.status();
    EXPECT_TRUE((*store)->CompareAndSet("epoch", kAbsent, "1").ok());
    EXPECT_FALSE(std::filesystem::exists(directory.File("state.db.new")));
  }
}

TEST(SqliteStore, TwoFirstStartsMakeOneFile) {
  const TempDirectory directory;
  const UniqueFd other(open(directory.path().c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  ExpectUnusable(OpenSqliteStore(directory.path()).status(), directory.path(),
                 "in use by another coordinator");
  ASSERT_EQ(flock(other.get(), LOCK_UN), 0);
  EXPECT_TRUE(OpenSqliteStore(directory.path()).ok());
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void ExecuteIn(const std::string& path, const char* sql) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
}

// Most programs set neither an application id nor a version.
TEST(SqliteStore, LeavesADatabaseOfAnotherProgramAsItIs) {
  for (const char* mode : {"DELETE", "WAL"}) {
    const TempDirectory directory;
    const std::string path = directory.File("state.db");
    ExecuteIn(path, absl::StrCat("PRAGMA journal_mode=", mode,
                                 "; CREATE TABLE state(id, notes); INSERT INTO state "
                                 "VALUES(1, 'mine')")
                        .c_str());
    ASSERT_EQ(chmod(path.c_str(), 0644), 0);
    const std::string before = BytesOf(path);
    ExpectUnusable(OpenSqliteStore(directory.path()).status(), path, "another program");
    EXPECT_EQ(BytesOf(path), before) << mode;
    EXPECT_EQ(ModeOf(path), 0644u);
  }
}

TEST(SqliteStore, RefusesAFileWhoseTableIsGoneOrAnother) {
  for (const char* sql : {"DROP TABLE state", "ALTER TABLE state ADD COLUMN more TEXT"}) {
    const TempDirectory directory;
    ASSERT_TRUE(OpenSqliteStore(directory.path()).ok());
    ExecuteIn(directory.File("state.db"), sql);
    ExpectUnusable(OpenSqliteStore(directory.path()).status(), directory.path(),
                   "its table");
  }
}

TEST(SqliteStore, FindsDamageInsideTheFile) {
  TempDirectory directory;
  const std::string path = directory.path() + "/state.db";
  {
    auto store = OpenSqliteStore(directory.path());
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(
          (*store)->CompareAndSet(absl::StrCat(i), kAbsent, std::string(1000, 'v')).ok());
    }
  }
  const auto size = std::filesystem::file_size(path);
  ASSERT_GT(size, 40960u);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8192);
  file << std::string(16384, '\xee');
  file.close();
  const absl::Status damaged = OpenSqliteStore(directory.path()).status();
  ExpectUnusable(damaged, path, "damaged");
  EXPECT_THAT(std::string(damaged.message()), Not(HasSubstr("not an error")));
}

TEST(SqliteStore, RefusesAFileOfANewerLayout) {
  TempDirectory directory;
  ASSERT_TRUE(OpenSqliteStore(directory.path()).ok());
  const std::string path = directory.path() + "/state.db";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(63);  // low byte of user_version in SQLite's file header
  file.put(2);
  file.close();
  ExpectUnusable(OpenSqliteStore(directory.path()).status(), path, "layout 2");
}

TEST(SqliteStore, KeepsTheOldValueWhenTheDiskIsFull) {
  TempDirectory directory;
  if (mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "SKIPPED: mounting a tmpfs needs root, a full disk is not tested";
  }
  {
    auto store = OpenSqliteStore(directory.path());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->CompareAndSet("epoch", kAbsent, "1").ok());
    const auto full = (*store)->CompareAndSet("epoch", 1, std::string(100000, 'x'));
    ExpectUnusable(full.status(), directory.path(), "no space left");
    EXPECT_EQ((*(*store)->Load("epoch"))->value, "1");
    EXPECT_EQ(*(*store)->CompareAndSet("epoch", 1, "2"), 2) << "small changes still fit";
  }
  EXPECT_EQ((*(*OpenSqliteStore(directory.path()))->Load("epoch"))->value, "2");
  ASSERT_EQ(umount(directory.path().c_str()), 0);
}

}  // namespace
}  // namespace syncline
