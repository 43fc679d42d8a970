#include "comm/rpc/status_json.h"

#include <fstream>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/failure.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/server.h"
#include "comm/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

v1::StatusReply Sample() {
  v1::StatusReply reply;
  reply.set_build_version("0.1.0");
  v1::ServerStatus& server = *reply.add_servers();
  server.set_lanes("TLS 1.3");
  server.set_lanes_because("--data-plane tls");
  server.set_bytes(uint64_t{1} << 40);
  v1::JobStatus& job = *reply.add_jobs();
  job.set_name("resnet");
  job.set_epoch(3);
  job.set_learning_rate(2.5e-4);
  job.set_loss_scale(65536);
  job.set_skipped_steps(2);
  v1::MemberStatus& member = *job.add_members();
  member.set_rank(2);
  member.set_heartbeat_age_seconds(0.5);
  member.mutable_compression()->set_pushed_values(315);
  member.mutable_compression()->set_pushed_value_bytes(40);
  member.mutable_compression()->set_residual_ratio(2.5);
  member.mutable_compression()->set_choice("topk: why");
  job.set_push_codec("onebit");
  v1::PhaseSums& phases = *member.mutable_phases();
  phases.set_steps(12);
  for (const double seconds : {0.5, -1.0, 0.25, 0.0, 0.0, 0.125, 9.0}) {
    phases.add_seconds(seconds);  // one is not a time, one is of a later version
  }
  v1::ServerPhases& server_phases = *job.add_server_phases();
  server_phases.set_server(4);
  server_phases.mutable_phases()->add_seconds(1.5);
  return reply;
}

class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*,
                      v1::StatusReply* reply) override {
    absl::MutexLock lock(&mutex_);
    if (!answer_.ok()) return ToGrpcStatus(answer_);
    *reply = Sample();
    return grpc::Status::OK;
  }

  void Refuse(absl::Status answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }

 private:
  absl::Mutex mutex_;
  absl::Status answer_ ABSL_GUARDED_BY(mutex_);
};

class StatusJson : public testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {&coordinator_};
    auto running = StartServer(options);
    ASSERT_TRUE(running.ok()) << running.status();
    running_ = *std::move(running);
  }

  FakeCoordinator coordinator_;
  RunningServer running_;
};

TEST_F(StatusJson, FetchesNumbersAsNumbers) {
  const auto text = FetchStatusJson(running_.address, {}, absl::Seconds(5));
  ASSERT_TRUE(text.ok()) << text.status();
  const auto json = nlohmann::json::parse(*text);
  EXPECT_EQ(json["servers"][0]["bytes"], uint64_t{1} << 40);
  EXPECT_EQ(json["jobs"][0]["epoch"], 3);
  EXPECT_EQ(json["jobs"][0]["learning_rate"], 2.5e-4);
  EXPECT_EQ(json["jobs"][0]["loss_scale"], 65536);
  EXPECT_TRUE(json["jobs"][0]["gradient_norm"].is_null()) << "this job has none";
  EXPECT_EQ(json["jobs"][0]["skipped_steps"], 2);
  EXPECT_EQ(json["jobs"][0]["push_codec"], "onebit");
  const auto& compression = json["jobs"][0]["members"][0]["compression"];
  EXPECT_EQ(compression["ratio"], 31.5);
  EXPECT_EQ(compression["residual_ratio"], 2.5);
  EXPECT_EQ(compression["choice"], "topk: why");
  EXPECT_EQ(json["jobs"][0]["members"][0]["rank"], 2);
  EXPECT_EQ(json["jobs"][0]["members"][0]["heartbeat_age_seconds"], 0.5);
  const auto& phases = json["jobs"][0]["members"][0]["phases"];
  EXPECT_EQ(phases["steps"], 12);
  EXPECT_EQ(
      phases["seconds"].dump(),
      R"({"compute":0.5,"decode":0.125,"encode":0.0,"others":0.0,"publish":0.0,"push":0.25})");
  const auto& of_server = json["jobs"][0]["server_phases"][0];
  EXPECT_EQ(of_server["server"], 4);
  EXPECT_EQ(of_server["seconds"]["hold"], 1.5);
}

TEST(StatusAsJson, SaysOfALostServerSinceWhen) {
  v1::StatusReply reply = Sample();
  EXPECT_FALSE(
      nlohmann::json::parse(StatusAsJson(reply))["servers"][0].contains("lost_seconds"));
  reply.mutable_servers(0)->set_lost_seconds(0);
  EXPECT_EQ(nlohmann::json::parse(StatusAsJson(reply))["servers"][0]["lost_seconds"],
            0.0);
}

TEST(StatusAsJson, SaysWhichServersAreToEnd) {
  v1::StatusReply reply = Sample();
  reply.mutable_servers(0)->set_drains(true);
  EXPECT_EQ(nlohmann::json::parse(StatusAsJson(reply))["servers"][0]["drains"], true);
}

TEST(StatusAsJson, SaysWhatAJobHasGotOver) {
  v1::StatusReply reply;
  v1::RecoveryStatus& recoveries = *reply.add_jobs()->mutable_recoveries();
  recoveries.set_count(3);
  (*recoveries.mutable_causes())["backup"].set_count(2);
  (*recoveries.mutable_causes())["backup"].set_seconds(1.5);
  recoveries.set_last("server 1 (b:17)");
  const auto json = nlohmann::json::parse(StatusAsJson(reply))["jobs"][0]["recoveries"];
  EXPECT_EQ(json["count"], 3);
  EXPECT_EQ(json["causes"]["backup"]["count"], 2);
  EXPECT_EQ(json["causes"]["backup"]["seconds"], 1.5);
  EXPECT_EQ(json["last"], "server 1 (b:17)");
}

// Everything that the coordinator reports must be shown.
TEST(StatusAsJson, LeavesNothingOut) {
  v1::StatusReply reply;
  v1::JobStatus& job = *reply.add_jobs();
  job.add_members();
  job.add_backups();
  job.add_goals();
  (*job.mutable_answers()->mutable_given())["staleness"] = 3;
  reply.add_servers()->set_lost_seconds(1);
  const auto json = nlohmann::json::parse(StatusAsJson(reply));
  const auto expect_all = [](const google::protobuf::Message& message,
                             const nlohmann::json& shown) {
    const google::protobuf::Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      EXPECT_TRUE(shown.contains(type.field(i)->name())) << type.field(i)->full_name();
    }
  };
  expect_all(reply, json);
  expect_all(reply.servers(0), json["servers"][0]);
  expect_all(job, json["jobs"][0]);
  expect_all(job.members(0), json["jobs"][0]["members"][0]);
  expect_all(job.backups(0), json["jobs"][0]["backups"][0]);
  expect_all(job.goals(0), json["jobs"][0]["goals"][0]);
  expect_all(job.answers(), json["jobs"][0]["answers"]);
  EXPECT_EQ(json["jobs"][0]["answers"]["given"]["staleness"], 3);
  expect_all(job.recoveries(), json["jobs"][0]["recoveries"]);
  job.add_records();
  expect_all(job.records(0).progress(),
             nlohmann::json::parse(StatusAsJson(reply))["jobs"][0]["records"][0]);
  expect_all(job.checkpoint(), json["jobs"][0]["checkpoint"]);
}

// Fills every field, and adds one entry to each repeated field, except maps: in the
// thread-sanitizer build, Protobuf's layout of a map differs from that of the installed
// library, which reflection uses.
void Fill(google::protobuf::Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::Reflection& fields = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = type.field(i);
    if (field->is_map()) continue;
    const bool is_message =
        field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE;
    if (is_message) {
      Fill(field->is_repeated() ? *fields.AddMessage(&message, field)
                                : *fields.MutableMessage(&message, field));
    } else if (field->has_presence()) {
      fields.SetDouble(&message, field, 1.5);
    }
  }
}

nlohmann::json StatusSchema() {
  std::ifstream file(STATUS_SCHEMA);
  return nlohmann::json::parse(file, nullptr, false);
}

// Compares names of fields, not values. The integration tests compare the values of
// running jobs.
void ExpectFits(const nlohmann::json& value, const nlohmann::json& said,
                const std::string& where) {
  static const nlohmann::json all = StatusSchema();
  const std::string elsewhere = said.value("$ref", "");  // "#/$defs/event"
  const nlohmann::json& schema =
      elsewhere.empty() ? said
                        : all.at(nlohmann::json::json_pointer(elsewhere.substr(1)));
  if (value.is_array()) {
    ASSERT_TRUE(schema.contains("items")) << where;
    for (const auto& one : value) ExpectFits(one, schema["items"], where + "[]");
  }
  if (!value.is_object()) return;
  const auto known = schema.value("properties", nlohmann::json::object());
  for (const auto& [name, inner] : value.items()) {
    const std::string here = absl::StrCat(where, ".", name);
    if (known.contains(name)) {
      ExpectFits(inner, known[name], here);
    } else {
      const auto others = schema.value("additionalProperties", nlohmann::json(false));
      ASSERT_TRUE(others.is_object()) << "docs/status.schema.json lacks " << here;
      ExpectFits(inner, others, here);
    }
  }
  for (const auto& name : schema.value("required", nlohmann::json::array())) {
    EXPECT_TRUE(value.contains(name)) << where << " lacks " << name;
  }
}

TEST(StatusAsJson, IsAsItsSchemaSays) {
  v1::StatusReply reply;
  Fill(reply);
  Fill((*reply.mutable_jobs(0)->mutable_recoveries()->mutable_causes())["a worker"]);
  const nlohmann::json schema = StatusSchema();
  ASSERT_TRUE(schema.is_object()) << STATUS_SCHEMA;
  const auto json = nlohmann::json::parse(StatusAsJson(reply));
  ASSERT_EQ(json["jobs"][0]["recoveries"]["causes"].size(), 1u);
  ExpectFits(json, schema, "status");
}

TEST(StatusAsJson, SurvivesANameThatIsNoUtf8) {
  v1::StatusReply reply;
  reply.add_jobs()->set_name("a\xff");
  EXPECT_EQ(nlohmann::json::parse(StatusAsJson(reply))["jobs"][0]["name"], "a\uFFFD");
}

TEST_F(StatusJson, PassesTheCoordinatorsErrorOn) {
  coordinator_.Refuse(
      WithFailure(absl::FailedPreconditionError("too old"), Failure::kVersionMismatch));
  const auto text = FetchStatusJson(running_.address, {}, absl::Seconds(5));
  EXPECT_EQ(FailureOf(text.status()), Failure::kVersionMismatch);
}

TEST_F(StatusJson, SaysThatNobodyAnswers) {
  const std::string address = running_.address;
  running_.Shutdown(absl::ZeroDuration());
  running_.server.reset();
  const auto text = FetchStatusJson(address, {}, absl::Milliseconds(300));
  EXPECT_EQ(FailureOf(text.status()), Failure::kUnreachable);
  EXPECT_THAT(std::string(text.status().message()), testing::HasSubstr(address));
}

}  // namespace
}  // namespace syncline
