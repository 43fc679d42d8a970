#include "server/service/gate.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class GateTest : public testing::Test {
 protected:
  std::vector<Json> AuditLines() const {
    std::vector<Json> lines;
    for (absl::string_view line : absl::StrSplit(audit_.str(), '\n', absl::SkipEmpty())) {
      lines.push_back(Json::parse(std::string(line)));
    }
    return lines;
  }
  std::string Counters() {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  std::ostringstream audit_;
  prometheus::Registry registry_;
  ControlMetrics metrics_{registry_};
  std::unique_ptr<Gate> gate_ = *Gate::Create(
      {.audit = Logger::Create({.format = LogFormat::kJson, .stream = &audit_}),
       .metrics = &metrics_});
  const Peer worker_ = {.identity = Identity{Role::kWorker, "bert"},
                        .serial = "0A1B",
                        .address = "ipv4:10.0.0.7:41234"};
};

TEST_F(GateTest, WritesDownWhoCameInAsWhat) {
  v1::MemberMessage hello;
  hello.mutable_worker_hello()->set_job("bert");
  hello.mutable_worker_hello()->set_name("host\n:7");
  gate_->Admitted(worker_, hello);
  ASSERT_EQ(AuditLines().size(), 1u);
  const Json line = AuditLines()[0];
  EXPECT_EQ(line["msg"], "admitted");
  EXPECT_EQ(line["as"], "worker");
  EXPECT_EQ(line["job"], "bert");
  EXPECT_EQ(line["name"], "host\\x0a:7");
  EXPECT_EQ(line["identity"], "worker of job 'bert'");
  EXPECT_EQ(line["serial"], "0A1B");
  EXPECT_EQ(line["peer"], "ipv4:10.0.0.7:41234");
}

// This is not a refusal: a member with a new certificate connects again with it.
TEST_F(GateTest, NobodyIsListenedToLongerThanItsCertificateHolds) {
  v1::MemberMessage beat;
  beat.mutable_heartbeat();
  Peer peer = worker_;
  EXPECT_TRUE(gate_->CheckMessage(beat, peer).ok());
  peer.until = absl::Now() + absl::Hours(1);
  EXPECT_TRUE(gate_->CheckMessage(beat, peer).ok());
  peer.until = absl::Now() - absl::Seconds(1);
  const absl::Status ended = gate_->CheckMessage(beat, peer);
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FailureOf(ended), Failure::kNone);
  EXPECT_THAT(std::string(ended.message()), HasSubstr("has expired"));
}

TEST_F(GateTest, WritesDownWhatAChangeChanged) {
  gate_->Updated({.identity = Identity{Role::kOperator}}, "bert", {absl::OkStatus(), {7}},
                 "from lr=1 to lr=2");
  const Json line = AuditLines().at(0);
  EXPECT_EQ(line["msg"], "changed a job");
  EXPECT_EQ(line["change"], "from lr=1 to lr=2");
  EXPECT_EQ(line["epoch"], 7);
  EXPECT_EQ(line["identity"], "operator");
}

// Of each host only the 1st, 2nd, 4th … refusal is logged, whatever the port. All are
// counted.
TEST_F(GateTest, NobodyFillsTheDiskWithRefusals) {
  const absl::Status denied = absl::PermissionDeniedError("may not");
  Peer peer = worker_;
  for (int i = 1; i <= 5; ++i) {
    peer.address = absl::StrCat("ipv4:10.0.0.7:", i);
    gate_->Refused("a call", peer, denied);
  }
  peer.address = "ipv6:%5B::1%5D:9";
  peer.identity.reset();
  gate_->Refused("a stream", peer, denied);
  std::vector<int> counts;
  for (const Json& line : AuditLines()) counts.push_back(line["refused"]);
  EXPECT_THAT(counts, ElementsAre(1, 2, 4, 1));
  EXPECT_THAT(
      Counters(),
      HasSubstr("syncline_auth_refused_total{door=\"control\",reason=\"role\"} 5"));
  EXPECT_THAT(
      Counters(),
      HasSubstr("syncline_auth_refused_total{door=\"control\",reason=\"no_role\"} 1"));
}

TEST_F(GateTest, OneKindOfRefusalDoesNotHideAnother) {
  for (int i = 1; i <= 3; ++i) {
    gate_->Refused("a call", worker_, absl::PermissionDeniedError("may not ask"));
  }
  gate_->Refused("a call", worker_, absl::PermissionDeniedError("may not change jobs"));
  gate_->Refused("a member", worker_, absl::PermissionDeniedError("may not ask"));
  std::vector<int> counts;
  for (const Json& line : AuditLines()) counts.push_back(line["refused"]);
  EXPECT_THAT(counts, ElementsAre(1, 2, 1, 1));
}

// This client names a different job each time, so the reasons are all different.
TEST_F(GateTest, NobodyHidesTheRefusalsOfOthersBehindHisOwn) {
  for (int i = 0; i < 5000; ++i) {
    gate_->Refused("a call", worker_,
                   absl::PermissionDeniedError(absl::StrCat("may not change job x", i)));
  }
  const size_t before = AuditLines().size();
  Peer other = worker_;
  other.identity = Identity{Role::kOperator};
  gate_->Refused("a call", other, absl::PermissionDeniedError("may not end a server"));
  ASSERT_EQ(AuditLines().size(), before + 1);
  const Json line = AuditLines().back();
  EXPECT_EQ(line["identity"], "operator");
  EXPECT_EQ(line["refused"], 1);
}

TEST_F(GateTest, ManyHostsCannotFillItEither) {
  Peer peer;
  for (int i = 0; i < 10000; ++i) {
    peer.address = absl::StrCat("ipv4:10.0.", i / 256, ".", i % 256, ":1");
    gate_->Refused("a stream", peer, absl::PermissionDeniedError("no"));
  }
  // 4096 hosts have one line each. All others are counted together.
  EXPECT_EQ(AuditLines().size(), 4096u + 13u);
}

}  // namespace
}  // namespace syncline
