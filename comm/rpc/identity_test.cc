#include "comm/rpc/identity.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Cluster kCluster = {"example.org", "prod-1"};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(Identity, UrisAndIdentitiesAreOneToOne) {
  const std::pair<Identity, std::string> pairs[] = {
      {{Role::kCoordinator, "", kCluster},
       "spiffe://example.org/syncline/prod-1/role/coordinator"},
      {{Role::kServer, "", kCluster}, "spiffe://example.org/syncline/prod-1/role/server"},
      {{Role::kOperator, "", kCluster},
       "spiffe://example.org/syncline/prod-1/role/operator"},
      {{Role::kReader, "", kCluster}, "spiffe://example.org/syncline/prod-1/role/reader"},
      {{Role::kWorker, "Bert_2.large", kCluster},
       "spiffe://example.org/syncline/prod-1/job/Bert_2.large/role/worker"},
  };
  for (const auto& [identity, uri] : pairs) {
    const auto parsed = ParseIdentityUri(uri);
    ASSERT_TRUE(parsed.ok()) << uri << ": " << parsed.status();
    EXPECT_EQ(*parsed, identity);
    EXPECT_EQ(*UriOf(identity), uri);
  }
}

TEST(Identity, AuthoritiesAreOfACluster) {
  EXPECT_EQ(*UriOf(kCluster), "spiffe://example.org/syncline/prod-1");
  EXPECT_EQ(*ParseCluster("spiffe://example.org/syncline/prod-1"), kCluster);
  EXPECT_FALSE(ParseCluster("spiffe://example.org/syncline/prod-1/job/a").ok());
  EXPECT_FALSE(ParseCluster("spiffe://example.org").ok());
  EXPECT_FALSE(ParseIdentityUri("spiffe://example.org/syncline/prod-1").ok());
}

TEST(Identity, RefusesWhatIsNotExactlyItsForm) {
  for (const char* uri : {"",
                          "spiffe://",
                          "spiffe:///syncline/c/role/server",
                          "https://example.org/syncline/c/role/server",
                          "SPIFFE://example.org/syncline/c/role/server",
                          "spiffe://Example.org/syncline/c/role/server",
                          "spiffe://example.org:80/syncline/c/role/server",
                          "spiffe://a@b/syncline/c/role/server",
                          "spiffe://d/other/c/role/server",
                          "spiffe://d/syncline/c/role/server/",
                          "spiffe://d/syncline//role/server",
                          "spiffe://d/syncline/../role/server",
                          "spiffe://d/syncline/./role/server",
                          "spiffe://d/syncline/c/role/Server",
                          "spiffe://d/syncline/c/role/root",
                          "spiffe://d/syncline/c/role/worker",
                          "spiffe://d/syncline/c/job/j/role/operator",
                          "spiffe://d/syncline/c/job//role/worker",
                          "spiffe://d/syncline/c/job/a%2Fb/role/worker",
                          "spiffe://d/syncline/c/job/a b/role/worker",
                          "spiffe://d/syncline/c/job/\xc3\xa4/role/worker",
                          "spiffe://d/syncline/c/role/server?x",
                          "spiffe://d/syncline/c/role/server#x"}) {
    EXPECT_EQ(ParseIdentityUri(uri).status().code(), absl::StatusCode::kInvalidArgument)
        << uri;
  }
  const std::string uri("spiffe://d/syncline/c/role/server\0", 34);
  EXPECT_FALSE(ParseIdentityUri(uri).ok()) << "a zero byte";
  const std::string longest(255, 'c');
  EXPECT_TRUE(
      ParseIdentityUri(absl::StrCat("spiffe://d/syncline/", longest, "/role/server"))
          .ok());
  EXPECT_FALSE(
      ParseIdentityUri(absl::StrCat("spiffe://d/syncline/", longest, "c/role/server"))
          .ok());
}

TEST(Identity, WritesNoUriThatItWouldNotRead) {
  EXPECT_THAT(Message(UriOf({Role::kWorker, "my job", kCluster}).status()),
              HasSubstr("the job 'my job' cannot be used in a certificate"));
  EXPECT_FALSE(UriOf({Role::kWorker, "..", kCluster}).ok());
  EXPECT_FALSE(UriOf({Role::kServer, "", Cluster{"Upper", "c"}}).ok());
}

TEST(IdentityMap, ReadsNamesAndRoles) {
  const auto map = ParseIdentityMap(
      "# made by hand\n\nURI:spiffe://cluster.local/ns/ml/sa/trainer \t worker bert\r\n"
      "  DNS:coordinator.ml.svc coordinator\n");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->size(), 2u);
  EXPECT_EQ(map->at("URI:spiffe://cluster.local/ns/ml/sa/trainer"),
            (Identity{Role::kWorker, "bert"}));
  EXPECT_EQ(map->at("DNS:coordinator.ml.svc"), (Identity{Role::kCoordinator}));
}

TEST(IdentityMap, NamesTheLineThatIsWrong) {
  const auto error = [](const std::string& text) {
    return Message(ParseIdentityMap(text).status());
  };
  EXPECT_THAT(error("\nDNS:a"), AllOf(HasSubstr("line 2"), HasSubstr("'DNS:NAME ROLE'")));
  EXPECT_THAT(error("a server"), HasSubstr("line 1: 'a server' is not"));
  EXPECT_THAT(error("DNS: server"), HasSubstr("is not 'URI:NAME ROLE'"));
  EXPECT_THAT(error("DNS:a root"), HasSubstr("'root' is not a role"));
  EXPECT_THAT(error("DNS:a worker"), HasSubstr("a worker has a role and a job"));
  EXPECT_THAT(error("DNS:a server bert"), HasSubstr("more than a name and a role"));
  EXPECT_THAT(error("DNS:a server\nDNS:a reader"),
              AllOf(HasSubstr("line 2"), HasSubstr("DNS:a is listed already")));
  EXPECT_THAT(error("DNS:a\x1b[31m server"), HasSubstr("\\x1b"));
}

class Identification : public testing::Test {
 protected:
  std::string WhyNot(const SubjectNames& names) const {
    const auto found = Identify(names, known_);
    if (found.ok()) return "it is the " + Describe(*found);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kPermissionDenied);
    return Message(found.status());
  }

  Acquaintances known_ = {.cluster = kCluster,
                          .others = {{"URI:spiffe://k8s/ns/ml/sa/x", {Role::kServer}},
                                     {"DNS:trainer.example", {Role::kWorker, "bert"}},
                                     {"DNS:other.example", {Role::kReader}}}};
};

TEST_F(Identification, KnowsItsOwnClusterOnly) {
  const std::string ours = "spiffe://example.org/syncline/prod-1/job/a/role/worker";
  EXPECT_EQ(*Identify({.uris = {ours}}, known_),
            (Identity{Role::kWorker, "a", kCluster}));
  EXPECT_THAT(
      WhyNot({.uris = {"spiffe://example.org/syncline/test/role/operator"}}),
      HasSubstr("is of cluster example.org/test, this one is example.org/prod-1"));
  EXPECT_THAT(WhyNot({.uris = {"spiffe://evil/syncline/prod-1/role/operator"}}),
              HasSubstr("is of cluster evil/prod-1"));
  EXPECT_THAT(WhyNot({.uris = {"spiffe://example.org/syncline/prod-1/role/root"}}),
              HasSubstr("'root' is not a role"));
  known_.cluster.reset();
  EXPECT_THAT(WhyNot({.uris = {ours}}), HasSubstr("names no cluster"));
}

TEST_F(Identification, GoesByTheListForOthers) {
  EXPECT_EQ(WhyNot({.uris = {"spiffe://k8s/ns/ml/sa/x"}}), "it is the server");
  EXPECT_EQ(WhyNot({.hosts = {"a", "trainer.example"}}),
            "it is the worker of job 'bert'");
  EXPECT_THAT(
      WhyNot({.uris = {"spiffe://k8s/ns/ml/sa/y"}, .hosts = {"b"}}),
      AllOf(HasSubstr("names no role (it has URI:spiffe://k8s/ns/ml/sa/y, DNS:b)"),
            HasSubstr("syncline certs issue"), HasSubstr("--identities")));
  EXPECT_THAT(WhyNot({.hosts = {"TRAINER.example"}}), HasSubstr("names no role"));
  EXPECT_THAT(WhyNot({}), HasSubstr("no names at all"));
}

TEST_F(Identification, ACertificateIsOneMember) {
  EXPECT_THAT(WhyNot({.uris = {"spiffe://example.org/syncline/prod-1/role/reader",
                               "spiffe://example.org/syncline/prod-1/role/operator"}}),
              HasSubstr("has 2 URIs, not one"));
  EXPECT_THAT(WhyNot({.uris = {"spiffe://k8s/ns/ml/sa/x"}, .hosts = {"other.example"}}),
              HasSubstr("names two roles: server and reader"));
  EXPECT_THAT(WhyNot({.uris = {"spiffe://example.org/syncline/prod-1/role/operator"},
                      .hosts = {"other.example"}}),
              HasSubstr("names two roles"));
}

}  // namespace
}  // namespace syncline
