#include "server/admin/read_token.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "abcdefgh-01234567+/=";

ReadToken Token() { return *ReadToken::Parse(kToken); }

TEST(ReadToken, IsTheOneWordOfItsFile) {
  const auto token = ReadToken::Parse(absl::StrCat("  ", kToken, "\r\n\n"));
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_TRUE(token->IsSame(kToken));
  for (const char* other : {"", "abcdefgh-01234567+/", "abcdefgh-01234567+/==",
                            "Abcdefgh-01234567+/=", " abcdefgh-01234567+/="}) {
    EXPECT_FALSE(token->IsSame(other)) << other;
  }
}

TEST(ReadToken, RefusesAFileThatHoldsNoneAndDoesNotRepeatIt) {
  for (const std::string& contents :
       {std::string(), std::string("\n"), std::string(15, 'x'), std::string(513, 'x'),
        std::string("0123456789abcdef two words"),
        std::string("0123456789abcdef\nsecond"), std::string("0123456789abcdef;x=y"),
        std::string("0123456789abcdef\xc3\xa4")}) {
    const auto token = ReadToken::Parse(contents);
    ASSERT_FALSE(token.ok()) << contents;
    EXPECT_THAT(std::string(token.status().message()), HasSubstr("openssl rand -hex 32"));
    EXPECT_THAT(std::string(token.status().message()), Not(HasSubstr("0123456789")));
  }
  EXPECT_TRUE(ReadToken::Parse(std::string(16, 'x')).ok());
  EXPECT_TRUE(ReadToken::Parse(std::string(512, 'x')).ok());
}

TEST(ReadToken, IsShownInTheHeaderOfPrograms) {
  const ReadToken token = Token();
  EXPECT_TRUE(token.IsShownBy(absl::StrCat("Bearer ", kToken)));
  EXPECT_TRUE(token.IsShownBy(absl::StrCat("bearer  ", kToken)));
  for (const std::string& header :
       {std::string(), std::string("Bearer "), std::string("Bearer"), std::string(kToken),
        absl::StrCat("Basic ", kToken), absl::StrCat("Bearer ", kToken, "x"),
        absl::StrCat("Bearer ", token.cookie())}) {
    EXPECT_FALSE(token.IsShownBy(header)) << header;
  }
}

TEST(ReadToken, TheCookieIsNotTheTokenAndAsGood) {
  const ReadToken token = Token();
  EXPECT_THAT(token.cookie(), Not(HasSubstr("abcdefgh")));
  EXPECT_EQ(token.cookie(), Token().cookie());  // also in the next process
  EXPECT_NE(token.cookie(), ReadToken::Parse("another-token-of-its-own")->cookie());
  EXPECT_EQ(token.mark(), Token().mark());
  EXPECT_NE(token.mark(), ReadToken::Parse("another-token-of-its-own")->mark());
  EXPECT_THAT(token.cookie(), Not(HasSubstr(token.mark())));
  const std::string pair = absl::StrCat("mine=", token.cookie());
  EXPECT_TRUE(token.IsInCookies(pair, "mine"));
  EXPECT_TRUE(token.IsInCookies(absl::StrCat("a=b; mine=old;", pair, "; c=d"), "mine"));
  for (const std::string& cookies :
       {std::string(), std::string("mine="), absl::StrCat("mine=", kToken),
        absl::StrCat("not", pair), absl::StrCat("mine", pair), absl::StrCat(pair, "0")}) {
    EXPECT_FALSE(token.IsInCookies(cookies, "mine")) << cookies;
  }
}

TEST(ReadToken, IsReadFromAForm) {
  const ReadToken token = Token();
  for (const char* body :
       {"token=abcdefgh-01234567%2B%2F%3D", "token=abcdefgh-01234567%2b/=",
        "a=b&token=+abcdefgh-01234567%2B%2F%3D%0D%0A&c=d"}) {
    EXPECT_TRUE(token.IsInForm(body)) << body;
  }
  for (const char* body :
       {"", "token", "token=", "token=abcdefgh-01234567+/=", "token=%", "token=%2",
        "Token=abcdefgh-01234567%2B%2F%3D", "x=1;token=abcdefgh-01234567%2B%2F%3D"}) {
    EXPECT_FALSE(token.IsInForm(body)) << body;
  }
}

}  // namespace
}  // namespace syncline
