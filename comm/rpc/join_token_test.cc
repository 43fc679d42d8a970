#include "comm/rpc/join_token.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kId = "0123456789ab";
const std::string kSecret = "00112233445566778899aabbccddeeff";
const std::string kAuthority = absl::StrCat(kSecret, kSecret);

std::string Token(const std::string& id, const std::string& secret,
                  const std::string& authority, const std::string& address) {
  return absl::StrCat("sl1.", id, ".", secret, ".", authority, "@", address);
}

TEST(JoinToken, IsReadAsItIsWritten) {
  for (const char* address : {"ca.example:7073", "10.0.0.7:1", "[2001:db8::1]:65535"}) {
    const std::string text = Token(kId, kSecret, kAuthority, address);
    const auto token = ParseJoinToken(text);
    ASSERT_TRUE(token.ok()) << token.status();
    EXPECT_EQ(*token, (JoinToken{kId, kSecret, kAuthority, address}));
    EXPECT_EQ(Written(*token), text);
  }
}

TEST(JoinToken, IsRefusedWhenAPartIsMissingCutOrMore) {
  const std::string whole = Token(kId, kSecret, kAuthority, "h:1");
  ASSERT_TRUE(ParseJoinToken(whole).ok());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(ParseJoinToken(whole.substr(0, bytes)).ok()) << bytes;
  }
  for (const std::string& text : {
           whole + " ",
           whole + "\n",
           " " + whole,
           "sl2" + whole.substr(3),
           Token("0123456789AB", kSecret, kAuthority, "h:1"),
           Token(kId, kSecret + "0", kAuthority, "h:1"),
           Token(kId, kSecret, kSecret, "h:1"),
           Token("", kSecret, kAuthority, "h:1"),
           Token(kId, kSecret, kAuthority, "h"),
           Token(kId, kSecret, kAuthority, ":7073"),
           Token(kId, kSecret, kAuthority, "h:0"),
           Token(kId, kSecret, kAuthority, "h:07073"),
           Token(kId, kSecret, kAuthority, "h\x01:7"),
           Token(kId, kSecret, kAuthority, std::string(400, 'h') + ":7"),
       }) {
    EXPECT_FALSE(ParseJoinToken(text).ok()) << text;
  }
}

TEST(JoinToken, ErrorsDoNotRepeatTheSecret) {
  for (const std::string& text :
       {Token(kId, kSecret, kAuthority, "h"), Token(kId, kSecret, "", "h:1"),
        "sl9" + Token(kId, kSecret, kAuthority, "h:1")}) {
    const absl::Status status = ParseJoinToken(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(kSecret.substr(0, 8))));
  }
}

TEST(JoinToken, IsAnotherOneEachTime) {
  JoinToken one = DrawJoinToken();
  const JoinToken other = DrawJoinToken();
  EXPECT_NE(one.id, other.id);
  EXPECT_NE(one.secret, other.secret);
  one.authority = kAuthority;
  one.address = "h:1";
  EXPECT_EQ(*ParseJoinToken(Written(one)), one);
}

TEST(JoinToken, WhatIsKeptOfASecretIsItsSha256) {
  EXPECT_EQ(HashOfSecret("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_TRUE(IsSame("abc", "abc"));
  EXPECT_FALSE(IsSame("abc", "abd"));
  const std::string_view whole = "abc";
  EXPECT_FALSE(IsSame(whole, whole.substr(0, 2)));
  EXPECT_FALSE(IsSame(whole.substr(0, 2), whole));
}

}  // namespace
}  // namespace syncline
