#include "server/etcd/leadership.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/etcd/etcd_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// The leadership of one coordinator.
class Candidate {
 public:
  Candidate(const TestEtcd& etcd, const std::string& address,
            absl::Duration ttl = absl::Seconds(30))
      : etcd_(etcd.Connect("/lead")) {
    LeadershipOptions options{
        .address = address, .ttl = ttl, .look_every = absl::Milliseconds(20)};
    options.on_lost = [this](const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      lost_ = status;
    };
    leadership_ = std::make_unique<Leadership>(*etcd_, std::move(options));
  }

  bool leads() const { return leadership_->leads(); }
  std::optional<absl::Status> lost() const {
    absl::MutexLock lock(&mutex_);
    return lost_;
  }
  Leadership& operator*() { return *leadership_; }
  EtcdClient& etcd() { return *etcd_; }

  // Ends the lease, as etcd does if it is not renewed.
  void LoseLease() {
    etcdserverpb::RangeRequest request;
    request.set_key("/lead/leader");
    const auto found = etcd_->Range(request, absl::Seconds(60));
    ASSERT_TRUE(found.ok() && found->kvs_size() == 1);
    ASSERT_TRUE(etcd_->Revoke(found->kvs(0).lease(), absl::Seconds(60)).ok());
  }

 private:
  std::unique_ptr<EtcdClient> etcd_;
  mutable absl::Mutex mutex_;
  std::optional<absl::Status> lost_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Leadership> leadership_;  // last: it calls this object
};

class LeadershipTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!TestEtcd::IsInstalled()) GTEST_SKIP() << "etcd-server is not installed";
  }
};

TEST_F(LeadershipTest, OneLeadsAndTheNextOneFollowsAtOnceWhenItResigns) {
  TestEtcd etcd;
  Candidate first(etcd, "first:1", absl::Hours(1));
  ASSERT_TRUE(Eventually([&] { return first.leads(); }));
  EXPECT_EQ((*first).leader(), "first:1");
  Candidate second(etcd, "second:1", absl::Hours(1));
  ASSERT_TRUE(Eventually([&] { return (*second).leader() == "first:1"; }));
  EXPECT_FALSE(second.leads());
  const EtcdGuard before = (*first).guard();
  (*first).Resign();
  EXPECT_FALSE(first.leads());
  EXPECT_FALSE(first.lost()) << "it let go by itself";
  ASSERT_TRUE(Eventually([&] { return second.leads(); }));
  EXPECT_GT((*second).guard().create_revision, before.create_revision);
}

TEST_F(LeadershipTest, OneLeadsAlthoughTheFirstTwoOfFiveMembersAreDead) {
  TestEtcd etcd;
  const DeadEtcd first;
  const DeadEtcd second;
  const std::string third = etcd.Address("/lead").members[0];
  const auto client = *EtcdClient::Create(
      {{first.address(), second.address(), third, third, third}, "/lead"}, {},
      absl::Seconds(1));
  const Leadership leadership(
      *client,
      {.address = "a:1", .ttl = absl::Hours(1), .look_every = absl::Milliseconds(20)});
  EXPECT_TRUE(Eventually([&] { return leadership.leads(); }));
}

TEST_F(LeadershipTest, ALeaseIsKeptFarBeyondItsLength) {
  TestEtcd etcd;
  // Long enough that a busy machine can renew the lease in time.
  Candidate first(etcd, "first:1", absl::Seconds(15));
  Candidate second(etcd, "second:1", absl::Seconds(15));
  ASSERT_TRUE(Eventually([&] { return first.leads() || second.leads(); }));
  const SteadyClock clock;
  // The test would notice if both led at the same time.
  EXPECT_TRUE(Eventually([&] {
    EXPECT_FALSE(first.leads() && second.leads());
    return clock.Now() > absl::Seconds(20);
  }));
  EXPECT_TRUE(first.leads() || second.leads());
  EXPECT_FALSE(first.lost() || second.lost());
}

TEST_F(LeadershipTest, ALeaseThatEtcdHasEndedIsOverAndStaysSo) {
  TestEtcd etcd;
  Candidate first(etcd, "first:1", absl::Seconds(10));
  ASSERT_TRUE(Eventually([&] { return first.leads(); }));
  first.LoseLease();
  ASSERT_TRUE(Eventually([&] { return first.lost().has_value(); }));
  EXPECT_FALSE(first.leads());
  EXPECT_EQ(FailureOf(*first.lost()), Failure::kRetryable);
  EXPECT_THAT(std::string(first.lost()->message()), HasSubstr("the lease has ended"));
  Candidate second(etcd, "second:1");
  ASSERT_TRUE(Eventually([&] { return second.leads(); }));
  EXPECT_FALSE(first.leads());
}

// As with `etcdctl del`, while the lease continues.
TEST_F(LeadershipTest, ALeaderWhoseKeyWasDeletedNoticesWithoutWriting) {
  TestEtcd etcd;
  Candidate first(etcd, "first:1", absl::Seconds(30));
  ASSERT_TRUE(Eventually([&] { return first.leads(); }));
  etcdserverpb::TxnRequest change;
  change.add_success()->mutable_request_delete_range()->set_key("/lead/leader");
  ASSERT_TRUE(first.etcd().Txn(change, absl::Seconds(60)).ok());
  ASSERT_TRUE(Eventually([&] { return first.lost().has_value(); }));
  EXPECT_FALSE(first.leads());
  EXPECT_EQ(FailureOf(*first.lost()), Failure::kRetryable);
  EXPECT_THAT(std::string(first.lost()->message()), HasSubstr("its key was deleted"));
}

TEST_F(LeadershipTest, SaysWhetherEtcdHasAnsweredAndWhyNot) {
  TestEtcd etcd;
  const DeadEtcd dead;
  const auto client =
      *EtcdClient::Create({{dead.address()}, "/lead"}, {}, absl::Seconds(1));
  const Leadership waiting(*client, {.address = "a:1", .ttl = absl::Seconds(30)});
  EXPECT_FALSE(waiting.etcd_status().ok()) << "before it was asked";
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(waiting.etcd_status().message(), dead.address());
  }));
  Candidate first(etcd, "first:1");
  EXPECT_TRUE(Eventually([&] { return (*first).etcd_status().ok(); }));
}

TEST_F(LeadershipTest, WhoeverEndsLeadsForALittleLongerAtMost) {
  TestEtcd etcd;
  Candidate first(etcd, "first:1", absl::Hours(1));
  ASSERT_TRUE(Eventually([&] { return first.leads(); }));
  (*first).EndWithin(absl::Seconds(20));
  (*first).EndWithin(absl::Minutes(20));
  EXPECT_LE((*first).time_left(), absl::Seconds(20));
  (*first).EndWithin(absl::ZeroDuration());
  EXPECT_FALSE(first.leads());
  (*first).Resign();
  EXPECT_FALSE(first.lost()) << "it ended by itself";
  Candidate second(etcd, "second:1");
  EXPECT_TRUE(Eventually([&] { return second.leads(); })) << "at once";
}

TEST_F(LeadershipTest, AnEtcdThatDoesNotAnswerEndsItBeforeAnotherOneMayLead) {
  TestEtcd etcd;
  Candidate first(etcd, "first:1", absl::Seconds(5));
  ASSERT_TRUE(Eventually([&] { return first.leads(); }));
  Candidate second(etcd, "second:1", absl::Seconds(5));
  etcd.Signal(0, SIGSTOP);
  ASSERT_TRUE(Eventually([&] {
    EXPECT_FALSE(first.leads() && second.leads());
    return first.lost().has_value();
  }));
  EXPECT_FALSE(first.leads());
  EXPECT_EQ(FailureOf(*first.lost()), Failure::kRetryable);
  EXPECT_THAT(std::string(first.lost()->message()), HasSubstr("did not answer in time"));
  EXPECT_FALSE(second.leads());
  etcd.Signal(0, SIGCONT);
  ASSERT_TRUE(Eventually([&] { return second.leads(); }));
  EXPECT_FALSE(first.leads());
}

TEST_F(LeadershipTest, AnEtcdThatIsAwayForAMomentUnseatsNobody) {
  TestEtcd etcd;
  Candidate first(etcd, "first:1", absl::Seconds(60));
  ASSERT_TRUE(Eventually([&] { return first.leads(); }));
  const EtcdGuard before = (*first).guard();
  etcd.Kill(0);
  etcd.Start(0);
  etcdserverpb::RangeRequest request;
  request.set_key("/lead/leader");
  absl::StatusOr<etcdserverpb::RangeResponse> found;
  ASSERT_TRUE(Eventually([&] {
    found = first.etcd().Range(request, absl::Seconds(1));
    return found.ok();
  }));
  ASSERT_EQ(found->kvs_size(), 1);
  EXPECT_EQ(found->kvs(0).create_revision(), before.create_revision);
  EXPECT_TRUE(first.leads());
}

TEST(LeadershipTtl, FollowsTheFailureTimeout) {
  const auto of = [](absl::Duration f) {
    return Leadership::TtlFor(Timeouts::Derive(f));
  };
  EXPECT_EQ(of(absl::Seconds(1)), absl::Seconds(5));
  EXPECT_EQ(of(absl::Seconds(10)), absl::Seconds(5));
  EXPECT_EQ(of(absl::Seconds(15)), absl::Seconds(8));
  EXPECT_EQ(of(absl::Seconds(60)), absl::Seconds(30));
}

}  // namespace
}  // namespace syncline
