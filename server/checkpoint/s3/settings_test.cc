#include "server/checkpoint/s3/settings.h"

#include <map>

#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

absl::StatusOr<S3Settings> Find(const std::string& location, Variables variables) {
  variables.emplace("AWS_ACCESS_KEY_ID", "id");
  variables.emplace("AWS_SECRET_ACCESS_KEY", "secret");
  return FindS3Settings(location, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(S3SettingsTest, AmazonsBucketsAreHosts) {
  const auto found =
      Find("s3://models/night/7/", {{"AWS_DEFAULT_REGION", "eu-central-1"}});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->bucket, "models");
  EXPECT_EQ(found->prefix, "night/7");
  EXPECT_EQ(found->origin, "https://models.s3.eu-central-1.amazonaws.com");
  EXPECT_EQ(found->root, "");
  EXPECT_EQ(found->Describe(),
            "s3://models/night/7 at https://models.s3.eu-central-1.amazonaws.com");
  const auto china = Find("s3://models", {{"AWS_REGION", "cn-north-1"}});
  EXPECT_EQ(china->origin, "https://models.s3.cn-north-1.amazonaws.com.cn");
  EXPECT_EQ(china->prefix, "");
  const auto dots = Find("s3://my.models", {});
  EXPECT_EQ(dots->origin, "https://s3.us-east-1.amazonaws.com");
  EXPECT_EQ(dots->root, "/my.models");
}

TEST(S3SettingsTest, BucketsOfAnEndpointAreInThePath) {
  const auto found =
      Find("s3://models/night", {{"AWS_ENDPOINT_URL", "http://minio:9000/"},
                                 {"AWS_REGION", "here"},
                                 {"AWS_CA_BUNDLE", "/ca.pem"}});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->origin, "http://minio:9000");
  EXPECT_EQ(found->host, "minio:9000");
  EXPECT_EQ(found->root, "/models");
  EXPECT_EQ(found->region, "here");
  EXPECT_EQ(found->ca_bundle, "/ca.pem");
  const auto own = Find("s3://models", {{"AWS_ENDPOINT_URL", "http://minio:9000"},
                                        {"AWS_ENDPOINT_URL_S3", "https://[::1]/s3"}});
  EXPECT_EQ(own->origin, "https://[::1]:443");
  EXPECT_EQ(own->host, "[::1]");
  EXPECT_EQ(own->root, "/s3/models");
}

TEST(S3SettingsTest, WhatIsWrongIsRefusedWithItsName) {
  for (const char* location :
       {"s3://", "s3:///prefix", "s3://Models", "s3://a", "s3://models/a//b",
        "s3://models/../x", "s3://models/a\nb"}) {
    const auto found = Find(location, {});
    EXPECT_EQ(FailureOf(found.status()), Failure::kUsage) << location;
  }
  for (const char* endpoint : {"minio:9000", "ftp://minio", "http://", "http://minio:0",
                               "http://minio:99999", "http://id:secret@minio:9000"}) {
    const auto found = Find("s3://models", {{"AWS_ENDPOINT_URL", endpoint}});
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("AWS_ENDPOINT_URL"))
        << endpoint;
  }
  EXPECT_THAT(
      std::string(Find("s3://models", {{"AWS_REGION", "a.b"}}).status().message()),
      HasSubstr("AWS_REGION 'a.b'"));
  const auto none = Find("s3://models", {{"AWS_SECRET_ACCESS_KEY", ""}});
  EXPECT_EQ(FailureOf(none.status()), Failure::kUsage);
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("need AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
}

TEST(S3SettingsTest, ADirectoryIsNoBucket) {
  EXPECT_TRUE(IsS3Location("s3://models"));
  for (const char* where : {"s3", "/s3://x", "./s3:/models", ""}) {
    EXPECT_FALSE(IsS3Location(where)) << where;
  }
}

}  // namespace
}  // namespace syncline
