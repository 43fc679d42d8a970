#include "comm/base/process_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "comm/base/temp_directory.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A machine with 8 GiB left, described by files that a test writes.
class ProcessLimitsTest : public ::testing::Test {
 protected:
  ProcessLimitsTest() {
    Write("proc/meminfo",
          "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\nCached: 1 kB\n");
  }

  void Write(const std::string& path, const std::string& content) {
    const std::filesystem::path whole = std::filesystem::path(root_.path()) / path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << content;
  }
  ProcessLimits Read() const { return ReadProcessLimits(root_.path()); }

  const TempDirectory root_;
};

TEST_F(ProcessLimitsTest, WithoutQuotasTheMachineIsTheLimit) {
  EXPECT_EQ(Read().memory_bytes, 8192 * kMiB);
  EXPECT_EQ(Read().cores, 0);
}

TEST_F(ProcessLimitsTest, NothingReadableIsNoLimit) {
  const ProcessLimits limits = ReadProcessLimits(root_.File("nowhere"));
  EXPECT_FALSE(limits.memory_bytes.has_value());
  EXPECT_EQ(limits.cores, 0);
}

TEST_F(ProcessLimitsTest, TakesTheLeastOfAllGroupsOfVersion2) {
  Write("proc/self/cgroup", "0::/pod/container\n");
  Write("sys/fs/cgroup/pod/memory.max", "1073741824\n");
  Write("sys/fs/cgroup/pod/memory.current", "314572800\n");
  Write("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 104857600\n");
  Write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  Write("sys/fs/cgroup/pod/container/memory.max", "max\n");
  Write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  EXPECT_EQ(Read().memory_bytes, (1024 - 200) * kMiB);
  EXPECT_EQ(Read().cores, 2);
}

TEST_F(ProcessLimitsTest, AContainerSeesItsOwnGroupAtTheRoot) {
  Write("proc/self/cgroup", "0::/kubepods/that/only/the/host/knows\n");
  Write("sys/fs/cgroup/memory.max", "536870912\n");
  Write("sys/fs/cgroup/memory.current", "1048576\n");
  Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(Read().memory_bytes, 511 * kMiB);
  EXPECT_EQ(Read().cores, 1) << "half a core is one thread";
}

TEST_F(ProcessLimitsTest, ReadsVersion1) {
  Write("proc/self/cgroup",
        "5:cpu,cpuacct:/box\n4:memory:/box\n1:name=systemd:/\n0::/box\n");
  Write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2147483648\n");
  Write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1073741824\n");
  Write("sys/fs/cgroup/memory/box/memory.stat", "total_inactive_file 536870912\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "400000\n");
  Write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read().memory_bytes, 1536 * kMiB);
  EXPECT_EQ(Read().cores, 4);
}

TEST_F(ProcessLimitsTest, WhatIsInUseAboveTheQuotaLeavesNothing) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "1048576\n");
  Write("sys/fs/cgroup/memory.current", "2097152\n");
  EXPECT_EQ(Read().memory_bytes, 0u);
}

TEST(ProcessLimits, OfThisMachineAreSane) {
  const ProcessLimits limits = ReadProcessLimits();
  EXPECT_GT(limits.memory_bytes.value_or(0), kMiB);
  EXPECT_GE(limits.cores, 0);
}

TEST(FileLimit, IsRaisedAsFarAsAllowed) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {.rlim_cur = std::min<rlim_t>(before.rlim_max, 64),
                      .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseFileLimit(), before.rlim_max);
  rlimit after = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace syncline
