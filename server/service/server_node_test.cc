// Tests a server with a scripted coordinator: what it says, and how often.
#include "server/service/server_node.h"

#include <functional>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/server.h"
#include "comm/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/service/proto_convert.h"

namespace syncline {
namespace {

// A job as a coordinator may describe it, also an impossible one.
struct JobToServe {
  uint32_t job = 0;
  JobSpec spec = {};
  std::vector<uint32_t> shard_of_block = {};
  uint32_t first_shard = 2;

  ConfigureJob Configure() const {
    auto declared = std::make_shared<DeclaredJob>();
    declared->declaration = Declare(spec);
    declared->spec = spec;
    auto placement = std::make_shared<JobPlacement>();
    placement->shard_of_block = shard_of_block;
    return {.job = job,
            .declared = std::move(declared),
            .placement = std::move(placement),
            .first_shard = first_shard};
  }
};

// Plays `script` on each stream and ends the stream with what it returns.
class ScriptedCoordinator final : public v1::Coordinator::Service {
 public:
  class Stream {
   public:
    explicit Stream(
        grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::MemberMessage>& wire)
        : wire_(wire) {}

    void Say(const CoordinatorBody& body) { wire_.Write(ToProto(body, shared_)); }
    void Say(const JobToServe& job) { Say(job.Configure()); }
    void Say(const v1::CoordinatorMessage& message) { wire_.Write(message); }

    // Returns the next message that is not a heartbeat; an empty one if the stream has ended.
    v1::MemberMessage Hear() {
      v1::MemberMessage message;
      while (wire_.Read(&message)) {
        if (message.has_server_hello()) SayReady();
        const bool is_empty = message.body_case() == v1::MemberMessage::BODY_NOT_SET;
        if (!message.has_heartbeat() && !is_empty) return message;
        if (message.has_heartbeat()) Answer(message);
      }
      return {};
    }

    v1::MemberMessage HearHeartbeat() {
      v1::MemberMessage message;
      while (wire_.Read(&message) && !message.has_heartbeat()) {
      }
      Answer(message);
      return message;
    }

   private:
    void SayReady() {
      v1::CoordinatorMessage ready;
      ready.mutable_link_ready();
      wire_.Write(ready);
    }
    void Answer(const v1::MemberMessage& heartbeat) {
      v1::CoordinatorMessage answer;
      answer.set_beat(heartbeat.beat());
      wire_.Write(answer);
    }

    grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::MemberMessage>& wire_;
    SharedBytes shared_;
  };
  using Script = std::function<absl::Status(Stream&)>;

  explicit ScriptedCoordinator(Script script) : script_(std::move(script)) {
    running_ = *Listen("127.0.0.1:0");
  }
  // Returns null if it cannot listen there.
  static std::unique_ptr<ScriptedCoordinator> TryStart(Script script,
                                                       const std::string& listen) {
    auto coordinator = absl::WrapUnique(new ScriptedCoordinator(std::move(script), {}));
    auto running = coordinator->Listen(listen);
    if (!running.ok()) return nullptr;
    coordinator->running_ = *std::move(running);
    return coordinator;
  }
  ~ScriptedCoordinator() override {
    if (running_.server != nullptr) running_.Shutdown(absl::ZeroDuration());
  }

  const std::string& address() const { return running_.address; }

  grpc::Status Attach(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::MemberMessage>*
                          wire) override {
    Stream stream(*wire);
    return ToGrpcStatus(script_(stream));
  }

 private:
  struct NotYet {};
  ScriptedCoordinator(Script script, NotYet) : script_(std::move(script)) {}

  absl::StatusOr<RunningServer> Listen(const std::string& address) {
    const ServerOptions options = {.listen = address, .tls = {}, .services = {this}};
    return StartServer(options);
  }

  const Script script_;
  RunningServer running_;
};

ServerNodeOptions Options(const std::string& coordinator, uint32_t engines = 1) {
  ServerNodeOptions options;
  options.coordinator = coordinator;
  options.name = "a server";
  options.engines = engines;
  options.timeouts = Timeouts::Derive(absl::Seconds(10));
  return options;
}

// Two tensors of one block each: one for each of two engines.
JobToServe TwoBlockJob() {
  JobToServe job = {.job = 5, .shard_of_block = {2, 3}};
  job.spec.name = "job";
  job.spec.tensors = {{"first", {100}, {}}, {"second", {200}, {}}};
  return job;
}

TEST(ServerNodeTest, SaysWhoItIsAndKeepsReporting) {
  absl::Notification attached, done;
  ScriptedCoordinator coordinator([&](auto& stream) {
    const v1::ServerHello hello = stream.Hear().server_hello();
    EXPECT_EQ(hello.protocol_version(), kProtocolVersion);
    EXPECT_EQ(hello.build_version(), SYNCLINE_VERSION);
    EXPECT_EQ(hello.name(), "a server");
    EXPECT_EQ(hello.shard_addresses_size(), 2);
    EXPECT_NE(hello.shard_addresses(0), hello.shard_addresses(1));
    stream.Say(ServerWelcome{0, 1});
    EXPECT_TRUE(stream.HearHeartbeat().has_heartbeat());
    EXPECT_TRUE(stream.HearHeartbeat().has_heartbeat());
    if (!done.HasBeenNotified()) done.Notify();
    stream.Hear();
    return absl::OkStatus();
  });
  ServerNodeEvents events;
  events.on_attached = [&](uint32_t) { attached.Notify(); };
  const auto node =
      ServerNode::Start(Options(coordinator.address(), 2), std::move(events));
  ASSERT_TRUE(node.ok()) << node.status();
  attached.WaitForNotification();
  EXPECT_TRUE((*node)->is_attached());
  done.WaitForNotification();
}

TEST(ServerNodeTest, AnswersOnceWhenAllItsEnginesHave) {
  absl::Notification done;
  ScriptedCoordinator coordinator([&](auto& stream) {
    stream.Hear();
    stream.Say(ServerWelcome{0, 1});
    stream.Say(TwoBlockJob());
    EXPECT_EQ(stream.Hear().job_configured().job(), 5u);
    for (uint64_t epoch = 1; epoch <= 2; ++epoch) {
      stream.Say(PrepareEpoch{5, epoch});
      const v1::MemberMessage prepared = stream.Hear();
      EXPECT_TRUE(prepared.has_epoch_prepared()) << prepared.DebugString();
      EXPECT_EQ(prepared.epoch_prepared().epoch(), epoch);
      CommitEpoch commit;
      commit.job = 5;
      commit.epoch = epoch;
      stream.Say(commit);
      const v1::MemberMessage committed = stream.Hear();
      EXPECT_TRUE(committed.has_epoch_committed()) << committed.DebugString();
      EXPECT_EQ(committed.epoch_committed().epoch(), epoch);
    }
    done.Notify();
    EXPECT_TRUE(stream.Hear().has_leave());
    return absl::OkStatus();
  });
  const auto node = ServerNode::Start(Options(coordinator.address(), 2), {});
  ASSERT_TRUE(node.ok()) << node.status();
  done.WaitForNotification();
  (*node)->Stop();
}

TEST(ServerNodeTest, ComesBackWhenTheStreamEnds) {
  int streams = 0;
  absl::Notification again;
  ScriptedCoordinator coordinator([&](auto& stream) {
    EXPECT_TRUE(stream.Hear().has_server_hello());
    stream.Say(ServerWelcome{0, 1});
    if (++streams == 1) {
      return WithFailure(absl::UnavailableError("restarting"), Failure::kRetryable);
    }
    again.Notify();
    stream.Hear();
    return absl::OkStatus();
  });
  const auto node = ServerNode::Start(Options(coordinator.address()), {});
  ASSERT_TRUE(node.ok()) << node.status();
  again.WaitForNotification();
}

// Returns a job that a coordinator of this version would refuse.
JobToServe ImpossibleJob(uint32_t job) {
  JobToServe impossible = TwoBlockJob();
  impossible.job = job;
  impossible.spec.training.optimizer.name = "no such thing";
  return impossible;
}

TEST(ServerNodeTest, AJobItCannotServeEndsAloneAndTheOthersGoOn) {
  absl::Notification done;
  ScriptedCoordinator coordinator([&](auto& stream) {
    stream.Hear();
    stream.Say(ServerWelcome{0, 1});
    stream.Say(TwoBlockJob());
    EXPECT_EQ(stream.Hear().job_configured().job(), 5u);
    stream.Say(ImpossibleJob(6));
    const v1::ConfigureFailed failed = stream.Hear().configure_failed();
    EXPECT_EQ(failed.job(), 6u);
    EXPECT_EQ(failed.code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(failed.message(), ::testing::HasSubstr("no such thing"));
    stream.Say(DropJob{6, "it failed"});
    JobToServe unplaced = TwoBlockJob();
    unplaced.job = 7;
    unplaced.shard_of_block.pop_back();
    stream.Say(unplaced);
    EXPECT_EQ(stream.Hear().configure_failed().job(), 7u);
    // The job has failed: messages about it are not answered.
    stream.Say(PrepareEpoch{7, 1});
    stream.Say(PrepareEpoch{5, 1});
    EXPECT_EQ(stream.Hear().epoch_prepared().job(), 5u);
    done.Notify();
    EXPECT_TRUE(stream.Hear().has_leave()) << "the same stream, to the end";
    return absl::OkStatus();
  });
  ServerNodeEvents events;
  events.on_given_up = [](const absl::Status& status) { ADD_FAILURE() << status; };
  const auto node =
      ServerNode::Start(Options(coordinator.address(), 2), std::move(events));
  ASSERT_TRUE(node.ok()) << node.status();
  done.WaitForNotification();
  (*node)->Stop();
}

TEST(ServerNodeTest, LogsMessagesThatItCannotUseAndGoesOn) {
  absl::Notification done;
  ScriptedCoordinator coordinator([&](auto& stream) {
    stream.Hear();
    stream.Say(ServerWelcome{0, 1});
    stream.Say(JobFailed{"a worker's job"});
    v1::CoordinatorMessage unreadable;
    unreadable.mutable_worker_welcome()->set_placement("\xff");
    for (int i = 0; i < 3; ++i) stream.Say(unreadable);
    stream.Say(TwoBlockJob());
    EXPECT_EQ(stream.Hear().job_configured().job(), 5u);
    done.Notify();
    EXPECT_TRUE(stream.Hear().has_leave()) << "the same stream, to the end";
    return absl::OkStatus();
  });
  std::ostringstream lines;
  ServerNodeOptions options = Options(coordinator.address(), 2);
  options.log = Logger::Create({.stream = &lines});
  const auto node = ServerNode::Start(options, {});
  ASSERT_TRUE(node.ok()) << node.status();
  done.WaitForNotification();
  (*node)->Stop();
  EXPECT_THAT(lines.str(), ::testing::ContainsRegex("for workers.*job_failed"));
  EXPECT_THAT(lines.str(), ::testing::ContainsRegex("cannot be read.*times=1"));
  EXPECT_THAT(lines.str(), ::testing::ContainsRegex("cannot be read.*times=2"));
  EXPECT_THAT(lines.str(), ::testing::Not(::testing::ContainsRegex("times=3")));
}

TEST(ServerNodeTest, SaysItsBudgetAndKeepsToIt) {
  absl::Notification done;
  ScriptedCoordinator coordinator([&](auto& stream) {
    EXPECT_EQ(stream.Hear().server_hello().memory_bytes(), uint64_t{1} << 20);
    stream.Say(ServerWelcome{0, 1});
    JobToServe large = TwoBlockJob();
    large.job = 4;
    large.spec.tensors[1].shape = {1 << 20};
    large.shard_of_block.assign(large.spec.Blocks().size(), 2);
    stream.Say(large);
    const v1::ConfigureFailed failed = stream.Hear().configure_failed();
    EXPECT_EQ(failed.job(), 4u);
    EXPECT_EQ(failed.code(), static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(failed.message(),
                ::testing::HasSubstr("of its memory budget of 1.0 MiB"));
    stream.Say(TwoBlockJob());
    EXPECT_EQ(stream.Hear().job_configured().job(), 5u);
    done.Notify();
    EXPECT_TRUE(stream.Hear().has_leave());
    return absl::OkStatus();
  });
  ServerNodeOptions options = Options(coordinator.address(), 2);
  options.memory_bytes = uint64_t{1} << 20;
  const auto node = ServerNode::Start(options, {});
  ASSERT_TRUE(node.ok()) << node.status();
  done.WaitForNotification();
  (*node)->Stop();
}

// Returns false if another process of this machine took the port meanwhile.
bool WaitsForACoordinatorOn(const std::string& address) {
  absl::Notification attached;
  ServerNodeEvents events;
  events.on_attached = [&](uint32_t) { attached.Notify(); };
  const auto node = ServerNode::Start(Options(address), std::move(events));
  EXPECT_TRUE(node.ok()) << node.status();
  EXPECT_FALSE((*node)->is_attached());
  const auto coordinator = ScriptedCoordinator::TryStart(
      [&](auto& stream) {
        stream.Hear();
        stream.Say(ServerWelcome{0, 1});
        stream.Hear();
        return absl::OkStatus();
      },
      address);
  if (coordinator == nullptr) return false;
  attached.WaitForNotification();
  (*node)->Stop();
  return true;
}

TEST(ServerNodeTest, WaitsForACoordinatorThatStartsLater) {
  constexpr int kPorts = 20;
  for (int i = 0; i < kPorts; ++i) {
    const int port = *PickFreePort("127.0.0.1");
    if (WaitsForACoordinatorOn(absl::StrCat("127.0.0.1:", port))) return;
  }
  FAIL() << "none of " << kPorts << " free ports stayed free";
}

TEST(ServerNodeTest, GivesUpWhenTryingAgainCannotHelp) {
  ScriptedCoordinator coordinator([](auto& stream) {
    stream.Hear();
    return WithFailure(absl::FailedPreconditionError("another version"),
                       Failure::kVersionMismatch);
  });
  absl::Notification given_up;
  absl::Status reason;
  ServerNodeEvents events;
  events.on_given_up = [&](const absl::Status& status) {
    reason = status;
    given_up.Notify();
  };
  const auto node = ServerNode::Start(Options(coordinator.address()), std::move(events));
  ASSERT_TRUE(node.ok()) << node.status();
  given_up.WaitForNotification();
  EXPECT_EQ(FailureOf(reason), Failure::kVersionMismatch);
}

}  // namespace
}  // namespace syncline
