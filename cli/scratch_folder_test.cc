#include "cli/scratch_folder.h"

#include <cstdlib>
#include <filesystem>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

class ScratchFolder : public ::testing::Test {
 protected:
  void SetUp() override { setenv("TMPDIR", parent_.path().c_str(), /*overwrite=*/1); }
  void TearDown() override { unsetenv("TMPDIR"); }

  TempDirectory parent_;
};

TEST_F(ScratchFolder, IsNewAndOfThisUserAlone) {
  const std::string one = *MakeScratchFolder("scratch-");
  EXPECT_NE(one, *MakeScratchFolder("scratch-"));
  EXPECT_THAT(one, HasSubstr(parent_.File("scratch-")));
  EXPECT_EQ(std::filesystem::status(one).permissions(),
            std::filesystem::perms::owner_all);
}

TEST_F(ScratchFolder, IsRefusedWithWhatToDo) {
  for (const char* name : {"missing", "missing/deeper"}) {
    setenv("TMPDIR", parent_.File(name).c_str(), /*overwrite=*/1);
    const absl::Status refused = MakeScratchFolder("scratch-").status();
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(parent_.File(name)));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("set TMPDIR"));
  }
}

}  // namespace
}  // namespace syncline
