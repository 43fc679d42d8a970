#include "worker/client/residual_file.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ResidualFiles : public ::testing::Test {
 protected:
  absl::Status Write() {
    return WriteResiduals(
        path_,
        {{.tensor = "fc1",
          .codec = "onebit",
          .kept = {.residual = residual_, .units = units_}},
         {.tensor = "fc2",
          .codec = "dgc",
          .kept = {.residual = residual_, .velocity = velocity_, .units = units_}}});
  }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Replace(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
  }

  const TempDirectory directory_;
  const std::string path_ = directory_.File("residuals");
  const std::vector<float> residual_ = {1, 2, 3};
  const std::vector<float> velocity_ = {4, 5, 6};
  const std::vector<GradientUnits> units_ = {{.loss_scale = 8, .learning_rate = 0.5f}};
};

TEST_F(ResidualFiles, BringBackWhatWasWritten) {
  ASSERT_TRUE(Write().ok());
  const auto parts = ReadResiduals(path_);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_THAT(*parts, SizeIs(2));
  EXPECT_EQ((*parts)[0].tensor, "fc1");
  EXPECT_EQ((*parts)[0].codec, "onebit");
  EXPECT_THAT((*parts)[0].residual, ElementsAre(1, 2, 3));
  EXPECT_THAT((*parts)[0].velocity, IsEmpty());
  EXPECT_EQ((*parts)[1].tensor, "fc2");
  EXPECT_THAT((*parts)[1].velocity, ElementsAre(4, 5, 6));
  EXPECT_EQ((*parts)[1].units, units_);
}

TEST_F(ResidualFiles, AreRefusedWhenCut) {
  ASSERT_TRUE(Write().ok());
  const std::string bytes = Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    Replace(bytes.substr(0, size));
    EXPECT_EQ(ReadResiduals(path_).status().code(), absl::StatusCode::kDataLoss) << size;
  }
  Replace(bytes + "x");
  EXPECT_EQ(ReadResiduals(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ResidualFiles, AreRefusedWhenAnyByteDiffers) {
  ASSERT_TRUE(Write().ok());
  const std::string bytes = Bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x41);
    Replace(damaged);
    EXPECT_EQ(ReadResiduals(path_).status().code(), absl::StatusCode::kDataLoss) << i;
  }
}

TEST_F(ResidualFiles, SayWhatIsMissing) {
  const absl::Status missing = ReadResiduals(path_).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(path_));
  const absl::Status nowhere = WriteResiduals("/nowhere/at/all", {});
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr("No such file"));
}

TEST_F(ResidualFiles, KeepTheOldOneWhenTheDiskIsFull) {
  std::FILE* const full = std::fopen("/dev/full", "wb");
  if (full == nullptr) GTEST_SKIP() << "no /dev/full here";
  std::fclose(full);
  ASSERT_TRUE(Write().ok());
  const std::string before = Bytes();
  ASSERT_EQ(symlink("/dev/full", (path_ + ".new").c_str()), 0);
  const absl::Status failed = Write();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("No space left"));
  EXPECT_EQ(Bytes(), before);
}

}  // namespace
}  // namespace syncline
