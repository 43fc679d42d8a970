// Fuzzes messages of the control plane: what is read of one, and written again.
//
//   offset  bytes
//   0       1      0: MemberMessage, 1: CoordinatorMessage, 2: JobSpec
//   1       2      0: as it is; otherwise the seed of random changes of its fields
//   3       rest   the message
//
// What is accepted is written as a message that is accepted, too, and gives the same
// bytes. Whether each field crosses is tested in tests/golden.
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/base/check.h"
#include "comm/base/secret_key.h"
#include "google/protobuf/stubs/logging.h"
#include "server/service/proto_convert.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/wire_message.h"

namespace syncline::fuzz {
namespace {

enum Kind : uint32_t { kMember, kCoordinator, kSpec, kKinds };

// Returns the message as it arrives.
template <typename Message>
Message Sent(const Message& message) {
  Message arrived;
  SYNCLINE_CHECK(arrived.ParseFromString(message.SerializeAsString()));
  return arrived;
}

void CheckDuration(absl::Duration duration) {
  SYNCLINE_CHECK(duration >= absl::ZeroDuration());
  SYNCLINE_CHECK(duration != absl::InfiniteDuration());
}

void CheckMember(const v1::MemberMessage& message) {
  const absl::StatusOr<MemberBody> body = FromProto(message);
  if (!body.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(body.status()));
    return;
  }
  if (const auto* beat = std::get_if<Heartbeat>(&*body)) {
    CheckDuration(beat->silent);
    CheckDuration(beat->durations.sum());
  }
  if (const auto* written = std::get_if<CheckpointWritten>(&*body)) {
    CheckDuration(written->took);
  }
  const v1::MemberMessage once = Sent(ToProto(*body));
  const absl::StatusOr<MemberBody> again = FromProto(once);
  SYNCLINE_CHECK(again.ok() && again->index() == body->index());
  SYNCLINE_CHECK(ToProto(*again).SerializeAsString() == once.SerializeAsString());
}

// Reads only what a server knows of a job, so the declaration is missing.
CoordinatorBody WithDeclaration(CoordinatorBody body) {
  auto* configure = std::get_if<ConfigureJob>(&body);
  if (configure == nullptr) return body;
  const JobSpec& spec = configure->declared->spec;
  auto declared = MakeDeclaredJob(Declare(spec), spec);
  SYNCLINE_CHECK(declared.ok());
  configure->declared = *std::move(declared);
  return body;
}

// Writing derives keys from those that were read. So only their size is the same.
std::string WithoutKeys(v1::CoordinatorMessage message) {
  if (message.has_commit_epoch()) {
    for (v1::Member& member : *message.mutable_commit_epoch()->mutable_members()) {
      SYNCLINE_CHECK(member.key().empty() || member.key().size() == SecretKey::kBytes);
      member.set_key(std::string(member.key().size(), '.'));
    }
  }
  return message.SerializeAsString();
}

void CheckCoordinator(const v1::CoordinatorMessage& message) {
  const absl::StatusOr<CoordinatorBody> body = FromProto(message);
  if (!body.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(body.status()));
    return;
  }
  SharedBytes shared;
  const v1::CoordinatorMessage once = Sent(ToProto(WithDeclaration(*body), shared));
  const absl::StatusOr<CoordinatorBody> again = FromProto(once);
  SYNCLINE_CHECK(again.ok() && again->index() == body->index());
  SYNCLINE_CHECK(WithoutKeys(ToProto(WithDeclaration(*again), shared)) ==
                 WithoutKeys(once));
}

void CheckSpec(const v1::JobSpec& message) {
  const JobSpec spec = FromProto(message);
  const Declaration once = Declare(spec);
  const absl::StatusOr<JobSpec> again = WireDeclarations().parse(*once.bytes);
  SYNCLINE_CHECK(again.ok());
  SYNCLINE_CHECK(*Declare(*again).bytes == *once.bytes);
  const auto declared = MakeDeclaredJob(once, spec);
  if (!declared.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(declared.status()));
    return;
  }
  SYNCLINE_CHECK(CheckSameJob(spec, *again).ok());
  SYNCLINE_CHECK((*declared)->parameters <= (*declared)->elements);
  SYNCLINE_CHECK((*declared)->elements <= kMaxJobElements);
}

template <typename Message>
bool Parse(const std::string& bytes, uint32_t changes, Message& message) {
  if (!message.ParseFromString(bytes)) return false;
  if (changes == 0) return true;
  std::mt19937 random(changes);
  Alter(message, random);
  return message.ParseFromString(message.SerializeAsString());
}

template <typename Message>
void AddSeeds(Kind kind, const Message& message, std::vector<Bytes>& seeds) {
  for (uint32_t changes = 0; changes < 20; ++changes) {
    Bytes& seed = seeds.emplace_back();
    Append(seed, kind, 1);
    Append(seed, changes, 2);
    const std::string bytes = message.SerializeAsString();
    Append(seed, std::as_bytes(std::span(bytes)));
  }
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (const auto& message : MemberMessages()) AddSeeds(kMember, message, seeds);
  for (const auto& message : CoordinatorMessages()) {
    AddSeeds(kCoordinator, message, seeds);
  }
  v1::JobSpec spec;
  Fill(spec);
  AddSeeds(kSpec, spec, seeds);
  SYNCLINE_CHECK(spec.ParseFromString(*Declare(SomeJob()).bytes));
  AddSeeds(kSpec, spec, seeds);
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  const google::protobuf::LogSilencer without_errors_about_utf8;
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  const uint32_t kind = input.Take(1) % fuzz::kKinds;
  const uint32_t changes = input.Take(2);
  const std::string bytes(reinterpret_cast<const char*>(input.rest().data()),
                          input.rest().size());
  v1::MemberMessage member;
  v1::CoordinatorMessage coordinator;
  v1::JobSpec spec;
  if (kind == fuzz::kMember && fuzz::Parse(bytes, changes, member)) {
    fuzz::CheckMember(member);
  } else if (kind == fuzz::kCoordinator && fuzz::Parse(bytes, changes, coordinator)) {
    fuzz::CheckCoordinator(coordinator);
  } else if (kind == fuzz::kSpec && fuzz::Parse(bytes, changes, spec)) {
    fuzz::CheckSpec(spec);
  }
  return 0;
}
