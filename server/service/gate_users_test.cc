// Tests of the coordinator without TLS, on loopback: only its own user is admitted.
#include <netinet/in.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "comm/base/eventually.h"
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
  GateUsersTest() { std::filesystem::create_directory(proc_.File("net")); }
  ~GateUsersTest() override { Stop(); }

  void Start(const LocalUsers& users, const TlsOptions& tls = {}) {
    CoordinatorServiceOptions options = {
        .store = &store_, .tls = tls, .users = users, .metrics = &metrics_};
    service_ = *CoordinatorService::Create(std::move(options));
    running_ =
        *StartServer({.listen = "127.0.0.1:0", .tls = tls, .services = {service_.get()}});
  }
  void StartAndServe(const LocalUsers& users, const TlsOptions& tls = {}) {
    Start(users, tls);
    service_->ServesAt(running_.address);
  }
  // Returns a check that cannot find the user of any connection.
  LocalUsers Nobody() const { return LocalUsers(getuid(), HostSockets(proc_.path())); }
  // Makes the listening socket of the coordinator known to that check.
  void WriteListener() {
    std::ofstream(proc_.File("net/tcp")) << absl::StrFormat(
        "   0: %08X:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000  %d  0 "
        "4711\n",
        htonl(INADDR_LOOPBACK), running_.port, getuid());
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
  StartAndServe(LocalUsers::OfThisProcess());
  const grpc::Status status = Call();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(GateUsersTest, OthersAreRefusedAndCounted) {
  Start(Nobody());
  WriteListener();
  service_->ServesAt(running_.address);
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

// Connections that wait at the front door may be closed to make room
// (comm/rpc/front_door.h).
TEST_F(GateUsersTest, WhoCallsAndMayComeInDoesNotWaitAtTheDoor) {
  Start(LocalUsers::OfThisProcess());
  service_->ServesAt(running_.address, running_.door);
  const auto channel =
      grpc::CreateChannel(running_.address, grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::StatusReply reply;
  ASSERT_TRUE(v1::Coordinator::NewStub(channel)->Status(&context, {}, &reply).ok());
  EXPECT_EQ(running_.door->waiting(), 0u);
  const auto stream = AttachStream::Open(
      {.address = running_.address},
      {.on_message = [](const auto&) {}, .on_end = [](const absl::Status&) {}});
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_TRUE(Eventually([&] { return running_.door->waiting() == 0; }));
}

TEST_F(GateUsersTest, WhoMayNotComeInWaitsAtTheDoorHoweverOftenItCalls) {
  Start(Nobody());
  WriteListener();
  service_->ServesAt(running_.address, running_.door);
  const auto channel =
      grpc::CreateChannel(running_.address, grpc::InsecureChannelCredentials());
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    v1::StatusReply reply;
    EXPECT_FALSE(v1::Coordinator::NewStub(channel)->Status(&context, {}, &reply).ok());
  }
  EXPECT_EQ(running_.door->waiting(), 1u);
}

TEST_F(GateUsersTest, InsecureLetsInEveryUser) {
  TlsOptions insecure;
  insecure.insecure = true;
  StartAndServe(Nobody(), insecure);
  EXPECT_TRUE(Call().ok());
}

// In some sandboxes the kernel's table exists, but lacks the sockets of this process.
TEST_F(GateUsersTest, WhereNotEvenTheServerIsKnownAllAreLetIn) {
  std::ofstream(proc_.File("net/tcp")) << "  sl  local_address rem_address uid inode\n";
  StartAndServe(Nobody());
  EXPECT_TRUE(Call().ok());
}

TEST_F(GateUsersTest, WhereNothingCanBeReadAllAreLetIn) {
  StartAndServe(LocalUsers(getuid(), HostSockets(proc_.File("nowhere"))));
  EXPECT_TRUE(Call().ok());
}

// With Unavailable members connect again. With a final error they would end.
TEST_F(GateUsersTest, WhoComesTooEarlyIsAskedToComeBack) {
  Start(Nobody());
  EXPECT_EQ(Call().error_code(), grpc::StatusCode::UNAVAILABLE);
  service_->ServesAt(running_.address);
  EXPECT_TRUE(Call().ok());
}

}  // namespace
}  // namespace syncline
