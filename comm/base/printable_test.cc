#include "comm/base/printable.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(Printable, LeavesWhatPeopleWrite) {
  for (const std::string_view name :
       {"", "resnet-50/run 3", "modèle", "模型", "\xf0\x9f\x9a\x80", "a\"b'c\\d"}) {
    EXPECT_TRUE(IsPrintable(name)) << name;
    EXPECT_EQ(Printable(name), name);
  }
}

TEST(Printable, ShowsBytesThatAreNotPrintable) {
  EXPECT_EQ(Printable("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
  // No UTF-8: a lone continuation, a truncated, an overlong, a surrogate, too large.
  for (const std::string_view bad : {"\x80", "\xe6\xa8", "\xc0\xaf", "\xe0\x80\xaf",
                                     "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_FALSE(IsPrintable(bad));
    EXPECT_TRUE(IsPrintable(Printable(bad)));
  }
  // C1's escape, a line separator, a mark that reverses the direction of writing.
  EXPECT_EQ(Printable("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(Printable("\xe2\x80\xa8"), "\\xe2\\x80\\xa8");
  EXPECT_EQ(Printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(Printable("abcdef", 6), "abcdef");
  EXPECT_EQ(Printable("abcdefg", 6), "abcdef...");
  EXPECT_EQ(Printable("ab\xe6\xa8\xa1", 4), "ab...");
  EXPECT_EQ(Printable("ab\x01", 4), "ab...");
  EXPECT_EQ(Printable(std::string(3 << 20, '\x01')).size(), 203);
}

TEST(CheckName, NamesWhatIsWrong) {
  EXPECT_EQ(CheckName("a job's name", "resnet", 128), absl::OkStatus());
  EXPECT_THAT(std::string(CheckName("a job's name", "", 128).message()),
              HasSubstr("a job's name must have 1 to 128 bytes, not 0"));
  EXPECT_THAT(std::string(CheckName("x", std::string(129, 'a'), 128).message()),
              HasSubstr("not 129"));
  EXPECT_THAT(std::string(CheckName("a job's name", "a\n", 128).message()),
              HasSubstr("a job's name 'a\\x0a' holds control characters"));
}

}  // namespace
}  // namespace syncline
