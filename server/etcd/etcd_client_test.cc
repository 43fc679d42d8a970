#include "server/etcd/etcd_client.h"

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "comm/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/etcd/etcd_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// A member that takes a given time for each answer.
class SlowMember final : public etcdserverpb::KV::Service {
 public:
  explicit SlowMember(absl::Duration takes) : takes_(takes) {
    running_ = *StartServer({.listen = "127.0.0.1:0", .tls = {}, .services = {this}});
  }
  ~SlowMember() override { running_.Shutdown(absl::ZeroDuration()); }

  const std::string& address() const { return running_.address; }

  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest*,
                     etcdserverpb::RangeResponse*) override {
    absl::SleepFor(takes_);
    return grpc::Status::OK;
  }

 private:
  const absl::Duration takes_;
  RunningServer running_;
};

// As when some members are unreachable when this process starts.
TEST(EtcdClientTest, ACallGoesOnWhereTheOneBeforeGaveUp) {
  const DeadEtcd first;
  const DeadEtcd second;
  const SlowMember third(absl::ZeroDuration());
  const auto client =
      *EtcdClient::Create({{first.address(), second.address(), third.address()}, "/x"},
                          {}, absl::Milliseconds(500));
  // Enough time for two members.
  EXPECT_TRUE(Eventually([&] {
    return client->Range(etcdserverpb::RangeRequest(), absl::Seconds(1)).ok();
  }));
}

TEST(EtcdClientTest, WaitsLongerForMembersThatAreSlow) {
  const SlowMember slow(absl::Milliseconds(300));
  const auto client =
      *EtcdClient::Create({{slow.address()}, "/x"}, {}, absl::Milliseconds(50));
  const auto found = client->Range(etcdserverpb::RangeRequest(), absl::Seconds(60));
  EXPECT_TRUE(found.ok()) << found.status();
}

TEST(EtcdClientTest, SaysWhichMemberDidNotAnswer) {
  const DeadEtcd dead;
  const auto client =
      *EtcdClient::Create({{dead.address()}, "/x"}, {}, absl::Milliseconds(50));
  const absl::Status status =
      client->Range(etcdserverpb::RangeRequest(), absl::Milliseconds(200)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no answer within 200ms"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(dead.address()));
}

}  // namespace
}  // namespace syncline
