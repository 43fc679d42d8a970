// Tests with the examples that Amazon publishes for S3 and in its test suite of Signature
// Version 4.
#include "server/checkpoint/s3/signature.h"

#include <span>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

const S3Credentials kCredentials = {.key_id = "AKIAIOSFODNN7EXAMPLE",
                                    .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
const absl::Time kTime =
    absl::FromCivil(absl::CivilDay(2013, 5, 24), absl::UTCTimeZone());

std::string SignatureOf(SignedRequest request, const std::string& body = "") {
  request.payload_sha256 = Sha256Hex(std::as_bytes(std::span(body)));
  request.headers["host"] = "examplebucket.s3.amazonaws.com";
  request.headers["x-amz-date"] = AmzDate(kTime);
  request.headers["x-amz-content-sha256"] = request.payload_sha256;
  return Authorization(request, {.region = "us-east-1"}, kCredentials, kTime);
}

TEST(S3Signature, IsThatOfAmazonsExampleOfReadingARange) {
  const std::string signature = SignatureOf(
      {.method = "GET", .path = "/test.txt", .headers = {{"range", "bytes=0-9"}}});
  EXPECT_THAT(
      signature,
      EndsWith("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
  EXPECT_THAT(signature, HasSubstr("Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/"
                                   "s3/aws4_request,SignedHeaders=host;range;"));
}

TEST(S3Signature, IsThatOfAmazonsExampleOfPuttingAnObject) {
  EXPECT_THAT(
      SignatureOf({.method = "PUT",
                   .path = "/" + UriEncodePath("test$file.text"),
                   .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                               {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}},
                  "Welcome to Amazon S3."),
      EndsWith("98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
}

TEST(S3Signature, IsThatOfAmazonsExamplesWithParameters) {
  EXPECT_THAT(
      SignatureOf(
          {.method = "GET", .path = "/", .query = CanonicalQuery({{"lifecycle", ""}})}),
      EndsWith("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  EXPECT_THAT(
      SignatureOf({.method = "GET",
                   .path = "/",
                   .query = CanonicalQuery({{"prefix", "J"}, {"max-keys", "2"}})}),
      EndsWith("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST(S3Signature, IsThatOfTheTestSuite) {
  const absl::Time time =
      absl::FromCivil(absl::CivilSecond(2015, 8, 30, 12, 36, 0), absl::UTCTimeZone());
  const SignedRequest vanilla = {
      .method = "GET",
      .path = "/",
      .headers = {{"host", "example.amazonaws.com"}, {"x-amz-date", AmzDate(time)}},
      .payload_sha256 = Sha256Hex({})};
  EXPECT_EQ(Authorization(vanilla, {.region = "us-east-1", .service = "service"},
                          {.key_id = "AKIDEXAMPLE",
                           .secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"},
                          time),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/"
            "aws4_request,SignedHeaders=host;x-amz-date,Signature="
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
}

TEST(S3Signature, NamesAreEncodedAsS3WantsThem) {
  EXPECT_EQ(UriEncode("a/b c+d~e\xC3\xA4%41"), "a%2Fb%20c%2Bd~e%C3%A4%2541");
  EXPECT_EQ(UriEncodePath("a/b c"), "a/b%20c");
  EXPECT_EQ(CanonicalQuery({{"b", "1 2"}, {"a", ""}}), "a=&b=1%202");
}

}  // namespace
}  // namespace syncline
