#include "worker/examples/fashion_mnist/idx_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <string>
#include <vector>

#include "comm/base/temp_directory.h"
#include "worker/examples/fashion_mnist/dataset.h"

namespace syncline::fashion_mnist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two samples of 1x3 bytes.
const std::string kHeader("\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x03", 16);
const std::vector<uint32_t> kSizes = {2, 1, 3};

class IdxFile : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<uint8_t>> ReadGzip(const std::string& content) {
    const gzFile file = gzopen(path_.c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    return ReadIdxFile(path_, kSizes);
  }

  void ExpectRefused(const std::string& content, absl::StatusCode code,
                     const std::string& why) {
    const absl::Status status = ReadGzip(content).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  }

  const TempDirectory directory_;
  const std::string path_ = directory_.File("images.idx");
};

TEST_F(IdxFile, ReadsGzip) {
  EXPECT_THAT(*ReadGzip(kHeader + "abcdef"), ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
}

TEST_F(IdxFile, ReadsPlain) {
  std::ofstream(path_, std::ios::binary) << kHeader << "abcdef";
  EXPECT_THAT(*ReadIdxFile(path_, kSizes), ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
}

TEST_F(IdxFile, SaysWhichFileIsMissing) {
  const absl::Status status = ReadIdxFile("/nowhere/x.gz", kSizes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/x.gz"));
}

TEST_F(IdxFile, RefusesEveryTruncation) {
  const std::string whole = kHeader + "abcdef";
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    ExpectRefused(whole.substr(0, size), absl::StatusCode::kDataLoss, "ends too early");
  }
}

TEST_F(IdxFile, RefusesMoreThanItsSizesSay) {
  ExpectRefused(kHeader + "abcdefg", absl::StatusCode::kDataLoss, "more bytes");
}

TEST_F(IdxFile, RefusesAWrongMagic) {
  std::string floats = kHeader + "abcdef";
  floats[2] = 0x0d;
  ExpectRefused(floats, absl::StatusCode::kInvalidArgument, "magic 00000d03");
  ExpectRefused("PK\3\4" + kHeader, absl::StatusCode::kInvalidArgument,
                "not an IDX file");
}

TEST_F(IdxFile, RefusesAnotherNumberOfDimensions) {
  std::string labels = kHeader + "abcdef";
  labels[3] = 1;
  ExpectRefused(labels, absl::StatusCode::kInvalidArgument, "has 1 dimensions, not 3");
}

TEST_F(IdxFile, RefusesOtherSizesBeforeItAllocates) {
  std::string huge = kHeader + "abcdef";
  huge.replace(4, 4, "\xff\xff\xff\xff");
  ExpectRefused(huge, absl::StatusCode::kInvalidArgument,
                "sizes are 4294967295x1x3, not 2x1x3");
}

TEST_F(IdxFile, RefusesACorruptedStream) {
  ASSERT_TRUE(ReadGzip(kHeader + "abcdef").ok());
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-6, std::ios::end);  // inside the checksum
  file.put('\x5a');
  file.close();
  EXPECT_EQ(ReadIdxFile(path_, kSizes).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Dataset, NamesThePackageWhenItIsMissing) {
  const absl::Status status = LoadDataset("/nonexistent/no-such-folder").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("dataset-fashion-mnist"));
}

TEST(Dataset, LoadsTheRealOne) {
  const absl::StatusOr<Dataset> dataset = LoadDataset(kDefaultDataDir);
  if (absl::IsNotFound(dataset.status())) GTEST_SKIP() << dataset.status().message();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->train.size(), kTrainSamples);
  EXPECT_EQ(dataset->test.size(), kTestSamples);
  std::vector<int> per_class(kClasses);
  for (const uint8_t label : dataset->test.labels) ++per_class[label];
  EXPECT_THAT(per_class, ::testing::Each(1000));
}

}  // namespace
}  // namespace syncline::fashion_mnist
