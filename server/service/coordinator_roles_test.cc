// Tests of the coordinator over TLS: what each certificate permits.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "comm/base/eventually.h"
#include "comm/base/failure.h"
#include "comm/rpc/announcement.h"
#include "comm/rpc/attach_stream.h"
#include "comm/rpc/certificates_test_util.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/server.h"
#include "comm/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/admin/control_metrics.h"
#include "server/coordinator/declared_job.h"
#include "server/service/coordinator_service.h"
#include "server/service/job_convert.h"
#include "server/service/proto_convert.h"
#include "server/store/memory_store.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

// A stream with one hello, until the coordinator answers it or ends the stream.
class Attempt {
 public:
  Attempt(const std::string& address, const TlsOptions& tls,
          const v1::MemberMessage& hello) {
    auto stream = AttachStream::Open({.address = address, .tls = tls},
                                     {.on_message =
                                          [this](const v1::CoordinatorMessage& message) {
                                            Decide(absl::OkStatus(), message);
                                          },
                                      .on_end =
                                          [this](const absl::Status& status) {
                                            Decide(status, {});
                                            end_ = status;
                                            ended_.Notify();
                                          }});
    if (stream.ok()) {
      stream_ = *std::move(stream);
      stream_->Send(hello);
    } else {
      Decide(stream.status(), {});
    }
  }

  // Returns OK if the hello was accepted.
  absl::Status Outcome() {
    if (!decided_.WaitForNotificationWithTimeout(kPatience)) {
      return absl::DeadlineExceededError("no answer");
    }
    return outcome_;
  }
  void Say(const v1::MemberMessage& message) { stream_->Send(message); }
  bool HasEnded() const { return ended_.HasBeenNotified(); }
  absl::Status End() {
    if (!ended_.WaitForNotificationWithTimeout(kPatience)) return absl::OkStatus();
    return end_;
  }

 private:
  void Decide(const absl::Status& outcome, const v1::CoordinatorMessage& message) {
    const bool says_something =
        message.body_case() != v1::CoordinatorMessage::BODY_NOT_SET &&
        !message.has_link_ready();
    if (decided_.HasBeenNotified() || (outcome.ok() && !says_something)) return;
    outcome_ = outcome;
    decided_.Notify();
  }

  absl::Notification decided_;
  absl::Status outcome_;
  absl::Notification ended_;
  absl::Status end_;
  std::unique_ptr<AttachStream> stream_;  // last: it calls this object
};

v1::MemberMessage ServerHelloMessage() {
  v1::MemberMessage message =
      ToProto(MemberBody{ServerHello{"a server", {"address"}, ""}});
  message.mutable_server_hello()->set_protocol_version(kProtocolVersion);
  return message;
}

Announcement WorkerOf(const std::string& name) {
  JobSpec job;
  job.name = name;
  job.workers = 2;
  job.training.optimizer.name = "sgd";
  job.tensors = {{.name = "w", .shape = {100}}};
  v1::JobSpec spec;
  EXPECT_TRUE(spec.ParseFromString(*Declare(job).bytes));
  return Announce(spec, {.rank = 0, .name = "x"});
}

class CoordinatorRoles : public testing::Test {
 protected:
  void SetUp() override {
    SilenceGrpcLog();
    files_.MakeCa("ca");
    files_.MakeLeaf("coordinator", "ca", {.who = {Role::kCoordinator}});
    files_.MakeLeaf("server", "ca", {.who = {Role::kServer}});
    files_.MakeLeaf("worker-a", "ca", {.who = {Role::kWorker, "a"}});
    files_.MakeLeaf("worker-b", "ca", {.who = {Role::kWorker, "b"}});
    files_.MakeLeaf("operator", "ca", {.who = {Role::kOperator}});
    files_.MakeLeaf("reader", "ca", {.who = {Role::kReader}});
    files_.MakeLeaf("old-style", "ca", {.uri = "-"});
    files_.MakeLeaf("elsewhere", "ca",
                    {.uri = "spiffe://test/syncline/other/role/operator"});
    files_.Write("tricks", "URI:spiffe://test/syncline/c/role/coordinator coordinator\n");
    Start(files_.Identity("coordinator"));
  }
  void TearDown() override { Stop(); }

  void Start(const TlsOptions& tls, const std::string& revoked = "") {
    CoordinatorServiceOptions options;
    options.revoked_file = revoked;
    options.streams_per_certificate = streams_per_certificate_;
    options.metrics = &metrics_;
    options.store = &store_;
    options.tls = tls;
    auto service = CoordinatorService::Create(std::move(options));
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    auto running =
        StartServer({.listen = "127.0.0.1:0", .tls = tls, .services = {service_.get()}});
    ASSERT_TRUE(running.ok()) << running.status();
    running_ = *std::move(running);
  }
  void Stop() {
    if (service_ != nullptr) service_->Stop();
    running_.Shutdown(absl::ZeroDuration());
    running_ = {};
    service_.reset();
  }

  TlsOptions Files(const std::string& who) const {
    TlsOptions tls = files_.Identity(who);
    // Otherwise the peer would refuse to speak to this coordinator.
    if (who == "elsewhere") tls.identities_file = files_.Path("tricks");
    return tls;
  }

  absl::Status Attach(const std::string& who, const v1::MemberMessage& hello) {
    return Attempt(running_.address, Files(who), hello).Outcome();
  }

  std::unique_ptr<v1::Coordinator::Stub> Stub(const std::string& who) {
    const TlsOptions tls = Files(who);
    const auto channel = CreateChannel(running_.address, tls, RpcTimeouts::Default());
    EXPECT_TRUE(channel.ok()) << channel.status();
    return v1::Coordinator::NewStub(*channel);
  }
  absl::StatusOr<v1::StatusReply> Status(const std::string& who) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::StatusReply reply;
    const grpc::Status status = Stub(who)->Status(&context, {}, &reply);
    if (!status.ok()) return FromGrpcStatus(status);
    return reply;
  }
  absl::StatusOr<v1::EventsReply> Events(const std::string& who) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::EventsReply reply;
    const grpc::Status status = Stub(who)->Events(&context, {}, &reply);
    if (!status.ok()) return FromGrpcStatus(status);
    return reply;
  }
  absl::Status Update(const std::string& who, const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::UpdateJobRequest request;
    request.set_job(job);
    v1::UpdateJobReply reply;
    return FromGrpcStatus(Stub(who)->UpdateJob(&context, request, &reply));
  }

  absl::Status Drain(const std::string& who, const std::string& server) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::DrainServerRequest request;
    request.set_server(server);
    return FromGrpcStatus(Stub(who)->DrainServer(&context, request, &drained_));
  }

  absl::Status ReportExit(const std::string& who, const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::ReportExitRequest request;
    request.set_job(job);
    v1::ReportExitReply reply;
    return FromGrpcStatus(Stub(who)->ReportExit(&context, request, &reply));
  }

  absl::Status ReportStop(const std::string& who, const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::ReportStopRequest request;
    request.set_job(job);
    request.add_ranks(0);
    v1::ReportStopReply reply;
    return FromGrpcStatus(Stub(who)->ReportStop(&context, request, &reply));
  }

  absl::Status ReportPushes(const std::string& who, const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::ReportPushesRequest request;
    request.set_job(job);
    v1::ReportPushesReply reply;
    return FromGrpcStatus(Stub(who)->ReportPushes(&context, request, &reply));
  }

  static bool IsDenied(const absl::Status& status) {
    return absl::IsPermissionDenied(status) && FailureOf(status) == Failure::kUsage;
  }

  // Returns how the stream of an admitted member ends. It sends heartbeats, because the
  // coordinator checks the certificate with each message.
  static absl::Status EndOf(Attempt& attempt) {
    for (int i = 0; i < 3000 && !attempt.HasEnded(); ++i) {
      v1::MemberMessage beat;
      beat.mutable_heartbeat();
      attempt.Say(beat);
      absl::SleepFor(absl::Milliseconds(20));
    }
    return attempt.End();
  }
  // Returns the counter "…{door="control",reason="REASON"}", or -1 if there is none.
  double Refused(const std::string& reason) {
    for (const auto& family : registry_.Collect()) {
      for (const auto& metric : family.metric) {
        for (const auto& label : metric.label) {
          if (label.value == reason) return metric.counter.value;
        }
      }
    }
    return -1;
  }

  TestCertificates files_;
  prometheus::Registry registry_;
  ControlMetrics metrics_{registry_};
  size_t streams_per_certificate_ = kMaxWorkers;
  MemoryStore store_;
  std::unique_ptr<CoordinatorService> service_;
  RunningServer running_;
  v1::DrainServerReply drained_;  // the reply to the last call
};

TEST_F(CoordinatorRoles, OnlyServersAttachAsServers) {
  EXPECT_EQ(Attach("server", ServerHelloMessage()), absl::OkStatus());
  EXPECT_EQ(Attach("coordinator", ServerHelloMessage()), absl::OkStatus())
      << "serve --role all";
  for (const char* who : {"worker-a", "operator", "reader", "old-style", "elsewhere"}) {
    const absl::Status refused = Attach(who, ServerHelloMessage());
    EXPECT_TRUE(IsDenied(refused)) << who << ": " << refused;
  }
  EXPECT_THAT(std::string(Attach("worker-a", ServerHelloMessage()).message()),
              AllOf(HasSubstr("the worker of job 'a', which may not attach as a server"),
                    HasSubstr("--role server")));
}

TEST_F(CoordinatorRoles, OnlyWorkersOfAJobAttachAsItsWorkers) {
  const v1::MemberMessage hello = WorkerOf("a").hello;
  EXPECT_EQ(Attach("worker-a", hello), absl::OkStatus());
  for (const char* who :
       {"worker-b", "server", "operator", "reader", "old-style", "elsewhere"}) {
    const absl::Status refused = Attach(who, hello);
    EXPECT_TRUE(IsDenied(refused)) << who << ": " << refused;
  }
}

// The declaration must be for the job that the hello announced.
TEST_F(CoordinatorRoles, AWorkerCannotDeclareTheJobOfAnother) {
  const Announcement other = WorkerOf("b");
  v1::MemberMessage hello = other.hello;
  hello.mutable_worker_hello()->set_job("a");
  Attempt liar(running_.address, files_.Identity("worker-a"), hello);
  ASSERT_EQ(liar.Outcome(), absl::OkStatus()) << "it is asked for its job";
  liar.Say(other.declaration);
  EXPECT_THAT(std::string(liar.End().message()), HasSubstr("'b'"));
  EXPECT_TRUE(service_->View().jobs.empty());
}

TEST_F(CoordinatorRoles, StatusIsForOperatorsReadersAndWorkersOfTheJob) {
  Attempt server(running_.address, files_.Identity("server"), ServerHelloMessage());
  ASSERT_EQ(server.Outcome(), absl::OkStatus());
  for (const char* who : {"operator", "reader"}) {
    const auto reply = Status(who);
    ASSERT_TRUE(reply.ok()) << who << ": " << reply.status();
    EXPECT_EQ(reply->servers_size(), 1) << who;
  }
  const auto own = Status("worker-a");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->servers_size(), 0);
  EXPECT_EQ(own->events_size(), 0) << "they are of servers";
  for (const char* who : {"server", "old-style", "elsewhere"}) {
    EXPECT_TRUE(IsDenied(Status(who).status())) << who;
    EXPECT_TRUE(IsDenied(Events(who).status())) << who;
  }
}

TEST_F(CoordinatorRoles, AWorkerSeesItsOwnJobOnly) {
  const Announcement worker = WorkerOf("a");
  Attempt attempt(running_.address, files_.Identity("worker-a"), worker.hello);
  ASSERT_EQ(attempt.Outcome(), absl::OkStatus());
  attempt.Say(worker.declaration);
  ASSERT_TRUE(Eventually([&] { return !service_->View().jobs.empty(); }));
  EXPECT_EQ(Status("worker-a")->jobs_size(), 1);
  EXPECT_EQ(Status("worker-b")->jobs_size(), 0);
  EXPECT_EQ(Status("reader")->jobs_size(), 1);
  ASSERT_TRUE(Eventually([&] { return !Events("worker-a")->events().empty(); }));
  const auto own = Events("worker-a");
  ASSERT_EQ(own->events_size(), 1);
  EXPECT_EQ(own->events(0).job_name(), "a");
  EXPECT_EQ(Events("worker-b")->events_size(), 0);
  EXPECT_GT(Events("reader")->events_size(), 1) << "the coordinator's, too";
}

TEST_F(CoordinatorRoles, OnlyOperatorsChangeJobs) {
  const absl::Status allowed = Update("operator", "a");
  EXPECT_FALSE(allowed.ok());
  EXPECT_FALSE(absl::IsPermissionDenied(allowed)) << "there is no such job: " << allowed;
  for (const char* who : {"worker-a", "server", "reader", "old-style", "elsewhere"}) {
    EXPECT_TRUE(IsDenied(Update(who, "a"))) << who;
  }
  EXPECT_THAT(std::string(Update("old-style", "a").message()),
              AllOf(HasSubstr("names no role"), HasSubstr("syncline certs issue"),
                    HasSubstr("--identities")));
}

TEST_F(CoordinatorRoles, ExitsAreReportedByOperatorsAndWorkersOfTheJob) {
  for (const char* who : {"worker-a", "operator"}) {
    EXPECT_TRUE(absl::IsNotFound(ReportExit(who, "a"))) << who << ": no such job yet";
    EXPECT_TRUE(absl::IsNotFound(ReportStop(who, "a"))) << who << ": no such job yet";
    EXPECT_TRUE(absl::IsNotFound(ReportPushes(who, "a"))) << who << ": no such job yet";
  }
  for (const char* who : {"worker-b", "server", "reader", "old-style", "elsewhere"}) {
    EXPECT_TRUE(IsDenied(ReportExit(who, "a"))) << who;
    EXPECT_TRUE(IsDenied(ReportStop(who, "a"))) << who;
    EXPECT_TRUE(IsDenied(ReportPushes(who, "a"))) << who;
  }
}

TEST_F(CoordinatorRoles, OnlyOperatorsDrainServers) {
  Attempt server(running_.address, files_.Identity("server"), ServerHelloMessage());
  ASSERT_EQ(server.Outcome(), absl::OkStatus());
  for (const char* who : {"worker-a", "server", "reader", "old-style", "elsewhere"}) {
    EXPECT_TRUE(IsDenied(Drain(who, "a server"))) << who;
  }
  EXPECT_FALSE(service_->View().servers.at(0).drains);
  EXPECT_TRUE(absl::IsNotFound(Drain("operator", "another one")));
  EXPECT_EQ(Drain("operator", "a server"), absl::OkStatus());
  EXPECT_EQ(absl::Seconds(drained_.return_seconds()), 2 * kDefaultFailureTimeout);
  EXPECT_TRUE(service_->View().servers.at(0).drains);
}

TEST_F(CoordinatorRoles, WhoseCertificateIsRevokedIsOut) {
  Stop();
  files_.Write("revoked", "");
  Start(files_.Identity("coordinator"), files_.Path("revoked"));
  const Announcement worker = WorkerOf("a");
  Attempt attempt(running_.address, files_.Identity("worker-a"), worker.hello);
  ASSERT_EQ(attempt.Outcome(), absl::OkStatus());
  files_.Write("revoked", absl::StrCat(files_.SerialOf("worker-a"), "  worker-a\n"));
  EXPECT_TRUE(IsDenied(EndOf(attempt))) << attempt.End();
  EXPECT_THAT(std::string(attempt.End().message()), HasSubstr("was revoked"));
  EXPECT_TRUE(IsDenied(Status("worker-a").status()));
  EXPECT_TRUE(IsDenied(Attach("worker-a", worker.hello)));
  EXPECT_TRUE(Status("worker-b").ok()) << "of the same CA";
}

// The end is not final, because the member may have a certificate of the new authority.
TEST_F(CoordinatorRoles, WhoseAuthorityIsGoneIsCutOffAndTheOthersStay) {
  Stop();
  files_.MakeCa("other");
  files_.MakeLeaf("worker-of-other", "other", {.who = {Role::kWorker, "a"}});
  files_.MakeLeaf("reader-of-other", "other", {.who = {Role::kReader}});
  const std::string both = files_.Read("ca.crt") + files_.Read("other.crt");
  files_.Write("both.crt", both);
  Start(files_.Identity("coordinator", "both"));
  const TlsOptions of_other = files_.Identity("worker-of-other", "ca");
  Attempt gone(running_.address, of_other, WorkerOf("a").hello);
  Attempt stays(running_.address, files_.Identity("server"), ServerHelloMessage());
  ASSERT_EQ(gone.Outcome(), absl::OkStatus());
  ASSERT_EQ(stays.Outcome(), absl::OkStatus());
  const TlsOptions reader = files_.Identity("reader-of-other", "ca");
  const auto channel = *CreateChannel(running_.address, reader, RpcTimeouts::Default());
  const auto stub = v1::Coordinator::NewStub(channel);
  const auto call = [&] {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::StatusReply reply;
    return FromGrpcStatus(stub->Status(&context, {}, &reply));
  };
  EXPECT_EQ(call(), absl::OkStatus());
  files_.Write("both.crt", files_.Read("ca.crt"));
  const absl::Status end = EndOf(gone);
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_EQ(FailureOf(end), Failure::kNone);
  EXPECT_THAT(std::string(end.message()), HasSubstr("signed by 'other'"));
  EXPECT_TRUE(absl::IsUnavailable(call())) << "on a connection from before";
  EXPECT_FALSE(stays.HasEnded());
  EXPECT_EQ(Attach("worker-a", WorkerOf("a").hello), absl::OkStatus());
}

// Streams on which nothing is said count too.
TEST_F(CoordinatorRoles, OneCertificateHasSoManyStreamsAndLeavesOthersTheirs) {
  Stop();
  streams_per_certificate_ = 3;
  Start(files_.Identity("coordinator"));
  std::vector<std::unique_ptr<Attempt>> thefts;
  for (int i = 0; i < 3; ++i) {
    thefts.push_back(std::make_unique<Attempt>(
        running_.address, files_.Identity("worker-a"), WorkerOf("a").hello));
    ASSERT_EQ(thefts.back()->Outcome(), absl::OkStatus());
  }
  const absl::Status refused = Attach("worker-a", WorkerOf("a").hello);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("worker of job 'a'"), HasSubstr("has 3 streams already")));
  EXPECT_EQ(Refused("streams"), 1);
  EXPECT_EQ(Attach("worker-b", WorkerOf("b").hello), absl::OkStatus());
  EXPECT_EQ(Attach("server", ServerHelloMessage()), absl::OkStatus());
  thefts.pop_back();
  EXPECT_TRUE(Eventually([&] { return Attach("worker-a", WorkerOf("a").hello).ok(); }))
      << "an ended stream still counts";
}

TEST_F(CoordinatorRoles, AListGivesRolesToCertificatesOfOtherMakers) {
  Stop();
  files_.MakeLeaf("foreign", "ca", {.uri = "spiffe://k8s/ns/ml/sa/trainer"});
  files_.Write("list", "URI:spiffe://k8s/ns/ml/sa/trainer worker a\n");
  TlsOptions tls = files_.Identity("coordinator");
  tls.identities_file = files_.Path("list");
  Start(tls);
  EXPECT_EQ(Attach("foreign", WorkerOf("a").hello), absl::OkStatus());
  EXPECT_TRUE(IsDenied(Attach("foreign", WorkerOf("b").hello)));
  EXPECT_TRUE(IsDenied(Update("foreign", "a")));
  EXPECT_TRUE(Status("reader").ok()) << "the others stay what they are";
}

TEST_F(CoordinatorRoles, ACoordinatorNeedsItsOwnCertificate) {
  for (const char* who : {"server", "operator", "old-style"}) {
    CoordinatorServiceOptions options;
    options.store = &store_;
    options.tls = files_.Identity(who);
    const absl::Status status = CoordinatorService::Create(std::move(options)).status();
    EXPECT_EQ(FailureOf(status), Failure::kUsage) << who;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--role coordinator")) << who;
  }
}

}  // namespace
}  // namespace syncline
