// Which users can open the memory of UCX's queues.
#include "comm/transport/ucx/queue_memory.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/recording_receiver.h"
#include "comm/transport/ucx/ucx.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uid_t kNobody = 65534;

TEST(QueueMemory, IsPosixUnlessDevShmIsAsSmallAsContainersHaveIt) {
  EXPECT_EQ(QueueMemoryFor(0), QueueMemory::kSysv);
  EXPECT_EQ(QueueMemoryFor(64 * kMiB), QueueMemory::kSysv);
  EXPECT_EQ(QueueMemoryFor(64 * kMiB + 1), QueueMemory::kPosix);
  EXPECT_GE(DevShmBytes(), FreeDevShmBytes());
}

TEST(QueueMemory, TakesSegmentsFromTheGroup) {
  const int segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0664);
  ASSERT_GE(segment, 0);
  const absl::Cleanup remove = [&] { shmctl(segment, IPC_RMID, nullptr); };
  EXPECT_GE(TakeSegmentsFromGroup(), 1);
  shmid_ds state = {};
  ASSERT_EQ(shmctl(segment, IPC_STAT, &state), 0);
  EXPECT_EQ(state.shm_perm.mode & 0777, 0600);
  EXPECT_EQ(TakeSegmentsFromGroup(), 0);
}

// Returns the System V segments that this process made.
std::vector<int> OwnSegments() {
  std::vector<int> own;
  std::ifstream table("/proc/sysvipc/shm");
  table.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  long key = 0;
  for (int segment = 0; table >> key >> segment;) {
    table.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    shmid_ds state = {};
    if (shmctl(segment, IPC_STAT, &state) == 0 && state.shm_cpid == getpid()) {
      own.push_back(segment);
    }
  }
  return own;
}

// Returns paths by which other processes can open the POSIX segments of this one.
std::vector<std::string> OwnFiles() {
  std::vector<std::string> own;
  const std::string folder = absl::StrCat("/proc/", getpid(), "/fd");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone);
    if (absl::StartsWith(target, "/dev/shm/")) own.push_back(entry.path());
  }
  return own;
}

// Returns how many of them a process of another user can open.
int OpenedAs(uid_t user, gid_t group) {
  const std::vector<int> segments = OwnSegments();
  std::vector<std::string> files = OwnFiles();
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    files.push_back(entry.path());
  }
  const pid_t child = fork();
  if (child == 0) {
    if (setgroups(0, nullptr) != 0 || setresgid(group, group, group) != 0 ||
        setresuid(user, user, user) != 0) {
      _exit(255);
    }
    int opened = 0;
    for (const int segment : segments) {
      if (shmat(segment, nullptr, SHM_RDONLY) != reinterpret_cast<void*>(-1)) ++opened;
    }
    for (const std::string& file : files) {
      if (open(file.c_str(), O_RDONLY | O_CLOEXEC) >= 0) ++opened;
    }
    _exit(opened);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A transport whose queues lie in one kind of memory.
class Queues : public ::testing::TestWithParam<QueueMemory> {
 protected:
  void SetUp() override {
    setenv("UCX_TLS", GetParam() == QueueMemory::kPosix ? "posix,self" : "sysv,self", 1);
    auto transport = CreateUcxTransport({}, receiver_);
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
  }
  void TearDown() override { unsetenv("UCX_TLS"); }

  RecordingReceiver receiver_;
  std::unique_ptr<Transport> transport_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, Queues,
                         ::testing::Values(QueueMemory::kPosix, QueueMemory::kSysv),
                         [](const auto& info) {
                           return info.param == QueueMemory::kPosix ? "posix" : "sysv";
                         });

TEST_P(Queues, AreTheirUsersAlone) {
  if (GetParam() == QueueMemory::kPosix) {
    EXPECT_THAT(OwnFiles(), Not(IsEmpty()));
  } else {
    EXPECT_THAT(OwnSegments(), Not(IsEmpty()));
  }
  for (const int segment : OwnSegments()) {
    shmid_ds state = {};
    ASSERT_EQ(shmctl(segment, IPC_STAT, &state), 0);
    EXPECT_EQ(state.shm_perm.mode & 0077, 0) << "System V segment " << segment;
  }
  for (const std::string& file : OwnFiles()) {
    struct stat state = {};
    ASSERT_EQ(stat(file.c_str(), &state), 0);
    EXPECT_EQ(state.st_mode & 0077, 0u) << file;
  }
}

TEST_P(Queues, CannotBeOpenedByAnotherUserOrGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  EXPECT_GT(OpenedAs(geteuid(), getegid()), 0) << "nothing to be opened was found";
  EXPECT_EQ(OpenedAs(kNobody, getegid()), 0) << "another user of the same group";
  EXPECT_EQ(OpenedAs(kNobody, kNobody), 0) << "another group";
}

// The choice if the user does not choose.
TEST(QueueMemory, IsPrivateByDefaultForEveryReach) {
  for (const Reach reach : {Reach::kHostOnly, Reach::kRdma, Reach::kNetwork}) {
    RecordingReceiver receiver;
    auto transport = CreateUcxTransport({.reach = reach}, receiver);
    if (!transport.ok()) continue;  // no RDMA here
    for (const int segment : OwnSegments()) {
      shmid_ds state = {};
      ASSERT_EQ(shmctl(segment, IPC_STAT, &state), 0);
      EXPECT_EQ(state.shm_perm.mode & 0077, 0);
    }
    const bool is_posix = QueueMemoryFor(DevShmBytes()) == QueueMemory::kPosix;
    EXPECT_EQ(OwnFiles().empty(), !is_posix);
  }
}

}  // namespace
}  // namespace syncline
