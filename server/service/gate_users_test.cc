// Without TLS, on loopback: the coordinator is for its own user.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "comm/rpc/attach_stream.h"
#include "comm/rpc/server.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/service/coordinator_service.h"
#include "server/store/memory_store.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

class GateUsersTest : public testing::Test {
 protected:
  // The kernel knows nobody but root, who is not connected.
  GateUsersTest() {
    std::filesystem::create_directory(proc_.File("net"));
    std::ofstream(proc_.File("net/tcp")) << "  sl  local_address rem_address uid inode\n";
  }
  ~GateUsersTest() override { Stop(); }

  void Start(const LocalUsers& users, const TlsOptions& tls = {}) {
    CoordinatorServiceOptions options = {
        .store = &store_, .tls = tls, .users = users, .metrics = &metrics_};
    service_ = *CoordinatorService::Create(std::move(options));
    running_ =
        *StartServer({.listen = "127.0.0.1:0", .tls = tls, .services = {service_.get()}});
    service_->ServesAt(running_.port);
  }
  void Stop() {
    if (service_ == nullptr) return;
    service_->Stop();
    running_.Shutdown(absl::Seconds(1));
    service_ = nullptr;
  }

  grpc::Status Call() {
    const auto stub = v1::Coordinator::NewStub(
        grpc::CreateChannel(running_.address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::StatusReply reply;
    return stub->Status(&context, {}, &reply);
  }
  std::string Counters() {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  const TempDirectory proc_;
  prometheus::Registry registry_;
  ControlMetrics metrics_{registry_};
  MemoryStore store_;
  std::unique_ptr<CoordinatorService> service_;
  RunningServer running_;
};

TEST_F(GateUsersTest, TheOwnUserIsLetIn) {
  Start(LocalUsers::OfThisProcess());
  const grpc::Status status = Call();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(GateUsersTest, OthersAreRefusedAndCounted) {
  Start(LocalUsers(getuid(), proc_.path()));
  const grpc::Status status = Call();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("--insecure"));
  absl::Notification ended;
  absl::Status end;
  const auto stream = AttachStream::Open({.address = running_.address},
                                         {.on_message = [](const auto&) {},
                                          .on_end =
                                              [&](const absl::Status& status) {
                                                end = status;
                                                ended.Notify();
                                              }});
  ASSERT_TRUE(stream.ok()) << stream.status();
  (*stream)->Send({});
  ended.WaitForNotification();
  EXPECT_EQ(end.code(), absl::StatusCode::kPermissionDenied) << end;
  EXPECT_EQ(FailureOf(end), Failure::kUsage);
  EXPECT_THAT(
      Counters(),
      HasSubstr("syncline_auth_refused_total{door=\"control\",reason=\"local_user\"} 2"));
}

TEST_F(GateUsersTest, InsecureLetsInEveryUser) {
  TlsOptions insecure;
  insecure.insecure = true;
  Start(LocalUsers(getuid(), proc_.path()), insecure);
  EXPECT_TRUE(Call().ok());
}

TEST_F(GateUsersTest, WhereNobodyCanBeToldApartAllAreLetIn) {
  Start(LocalUsers(getuid(), proc_.File("nowhere")));
  EXPECT_TRUE(Call().ok());
}

}  // namespace
}  // namespace syncline
