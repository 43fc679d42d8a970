#include "comm/rpc/announcement.h"

#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "comm/base/tiling.h"
#include "comm/rpc/attach_stream.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

// Examples of FIPS 180-4.
TEST(Announcement, Sha256IsTheStandards) {
  EXPECT_EQ(absl::BytesToHexString(Sha256("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(absl::BytesToHexString(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Announcement, TheHelloHasTheDigestAndTheSizeOfWhatIsSentLater) {
  v1::JobSpec job;
  job.set_name("job");
  job.add_tensors()->set_name("a");
  const Announcement announced = Announce(
      job,
      {.rank = 3, .run_id = "run", .name = "x", .failure_timeout = absl::Seconds(2)});
  const v1::WorkerHello& hello = announced.hello.worker_hello();
  const std::string& spec = announced.declaration.job_declaration().spec();
  EXPECT_EQ(hello.protocol_version(), kProtocolVersion);
  EXPECT_EQ(hello.job(), "job");
  EXPECT_EQ(hello.rank(), 3u);
  EXPECT_EQ(hello.failure_timeout_ms(), 2000u);
  EXPECT_EQ(hello.job_digest(), Sha256(spec));
  EXPECT_EQ(hello.job_bytes(), spec.size());
  v1::JobSpec read;
  ASSERT_TRUE(read.ParseFromString(spec));
  EXPECT_EQ(read.tensors(0).name(), "a");
  job.set_workers(7);
  EXPECT_NE(Announce(job, {}).hello.worker_hello().job_digest(), hello.job_digest());
}

// Workers and servers cut into blocks by themselves; if their versions cut differently,
// they must not connect.
TEST(ProtocolVersion, NamesTheCutIntoBlocks) {
  const uint64_t elements[] = {191 * uint64_t{kTileElements}};
  EXPECT_EQ(std::pair(kProtocolVersion, CutIntoBlocks(elements).size()),
            std::pair(7u, size_t{96}))
      << "raise the version when the cut changes";
}

}  // namespace
}  // namespace syncline
