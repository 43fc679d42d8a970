// Fuzzes the coordinator: what members of a running job may send it, in any order, and
// calls, lost streams and restarts in between.
//
//   offset  bytes
//   0       1      index in kJobs
//   1       4 each an operation: what, who, 2 bytes of a seed
//
// The coordinator must not crash. What it sends must arrive, and what it stores must be
// such that the next coordinator can read it.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "comm/base/check.h"
#include "google/protobuf/stubs/logging.h"
#include "server/service/proto_convert.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_cluster.h"
#include "tests/fuzz/wire_message.h"

namespace syncline::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxOperations = 64;

struct JobKind {
  const char* mode;
  const char* durability;
};
constexpr JobKind kJobs[] = {{"bsp", "none"}, {"bsp", "disk"},      {"bsp", "peer"},
                             {"asp", "none"}, {"bsp", "disk+peer"}, {"ssp", "none"}};

// Operations besides the messages of members, whose numbers come first.
enum Operation : uint32_t {
  kTick = 40,
  kDisconnected,
  kReturned,
  kUpdate,
  kCheckpoint,
  kDrain,
  kExclude,
  kExit,
  kStop,
  kRestart,
  kOperations
};

JobSpec Declared(const JobKind& kind) {
  JobSpec job = SomeJob();
  job.training.mode = {.name = kind.mode};
  if (job.training.mode.name == "ssp") job.training.mode.values = {{"staleness", 2}};
  job.settings.durability = kind.durability;
  if (job.training.mode.name == "asp") {
    job.training.gradient.clear();  // a block is a step of its own
  } else {
    job.settings.checkpoint_every = {.steps = 2};
  }
  return job;
}

// Sets numbers that mean something in this cluster.
class Localizer {
 public:
  Localizer(const SmallCluster& cluster, std::mt19937& random)
      : cluster_(cluster), random_(random) {}

  void Localize(Message& message) {
    const auto& in = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    in.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const int size = field->is_repeated() ? in.FieldSize(message, field) : 0;
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        for (int i = 0; i < size; ++i) {
          Localize(*in.MutableRepeatedMessage(&message, field, i));
        }
        if (!field->is_repeated()) Localize(*in.MutableMessage(&message, field));
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
        const auto value = static_cast<uint32_t>(Number(field->name()));
        for (int i = 0; i < size; ++i) in.SetRepeatedUInt32(&message, field, i, value);
        if (!field->is_repeated()) in.SetUInt32(&message, field, value);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
        for (int i = 0; i < size; ++i) {
          in.SetRepeatedUInt64(&message, field, i, Number(field->name()));
        }
        if (!field->is_repeated()) in.SetUInt64(&message, field, Number(field->name()));
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING &&
                 !field->is_repeated()) {
        Text(message, *field);
      }
    }
  }

 private:
  uint64_t Number(const std::string& name) {
    if (name == "job") return cluster_.job();
    if (name.ends_with("epoch")) return cluster_.epoch() - (random_() % 4 == 0 ? 1 : 0);
    if (name == "session_key") return cluster_.session_key();
    if (name == "job_bytes") return cluster_.declaration().bytes->size();
    if (name == "memory_bytes") return 0;
    return random_() % 4;
  }
  void Text(Message& message, const FieldDescriptor& field) {
    const auto& in = *message.GetReflection();
    if (field.name() == "job") in.SetString(&message, &field, "job");
    if (field.name() == "job_digest") {
      in.SetString(&message, &field, cluster_.declaration().digest);
    }
    if (field.name() == "spec") {
      in.SetString(&message, &field, *cluster_.declaration().bytes);
    }
    if (field.name() == "run_id" || field.name() == "run") {
      in.SetString(&message, &field, random_() % 4 == 0 ? "another" : "run");
    }
    if (field.name() == "name") {
      in.SetString(&message, &field, "server" + std::to_string(random_() % 4));
    }
  }

  const SmallCluster& cluster_;
  std::mt19937& random_;
};

void SayAny(uint32_t what, uint32_t who, std::mt19937& random, SmallCluster& cluster) {
  static const std::vector<v1::MemberMessage> kMessages = MemberMessages();
  v1::MemberMessage message = kMessages[what % kMessages.size()];
  if (random() % 16 != 0) Localizer(cluster, random).Localize(message);
  if (random() % 2 == 0) Alter(message, random);
  v1::MemberMessage arrived;
  if (!arrived.ParseFromString(message.SerializeAsString())) return;
  const absl::StatusOr<MemberBody> body = FromProto(arrived);
  if (body.ok()) cluster.Say(who, *body);
}

void Update(std::mt19937& random, SmallCluster& cluster) {
  UpdateJob update = {.job = "job"};
  switch (random() % 4) {
    case 0:
      update.optimizer = {{"lr", 0.125}};
      break;
    case 1:
      update.goals = "samples_per_s>=2000";
      break;
    case 2:
      update.answers = "exclude_straggler";
      break;
    default:
      update.mode = NamedOptions{"ssp", {{"staleness", 1}}};
  }
  cluster.Apply(update);
}

void Do(uint32_t what, uint32_t who, uint32_t seed, SmallCluster& cluster) {
  std::mt19937 random(seed);
  switch (what) {
    case kTick:
      if (who % 2 == 0) cluster.BeatAll();
      return cluster.PassTime(absl::Milliseconds(seed % 8000));
    case kDisconnected:
      return cluster.Say(who, Disconnected{});
    case kReturned:
      return cluster.Say(who, Returned{});
    case kUpdate:
      return Update(random, cluster);
    case kCheckpoint:
      return cluster.Apply(syncline::CreateCheckpoint{"job"});
    case kDrain:
      return cluster.Apply(
          DrainServer{.server = std::to_string(1 + who % 4), .force = seed % 2 != 0});
    case kExclude:
      return cluster.Apply(
          ExcludeWorker{.job = "job", .rank = who % 3, .why = "it is slow"});
    case kExit:
      return cluster.Apply(WorkerExit{
          .job = "job", .run_id = "run", .rank = who % 3, .how = "signal 9 (Killed)"});
    case kStop:
      return cluster.Apply(LauncherStop{.job = "job",
                                        .run_id = "run",
                                        .ranks = {who % 3},
                                        .why = "SIGINT",
                                        .host = "host"});
    case kRestart:
      return cluster.Restart();
    default:
      return SayAny(what, who, random, cluster);
  }
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  std::mt19937 random(1);
  for (uint32_t i = 0; i < 300; ++i) {
    Bytes& seed = seeds.emplace_back();
    Append(seed, i, 1);
    for (uint32_t operation = 0; operation < i % 30; ++operation) {
      Append(seed, random(), 4);
    }
  }
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  const google::protobuf::LogSilencer without_errors_about_utf8;
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  fuzz::SmallCluster cluster(
      fuzz::Declared(fuzz::kJobs[input.Take(1) % std::size(fuzz::kJobs)]));
  for (size_t i = 0; i < fuzz::kMaxOperations && !input.rest().empty(); ++i) {
    const uint32_t what = input.Take(1) % fuzz::kOperations;
    const uint32_t who = input.Take(1);
    fuzz::Do(what, who, input.Take(2), cluster);
  }
  cluster.CheckView();
  return 0;
}
