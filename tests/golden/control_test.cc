// The control plane: the numbers and types of all fields, messages that an earlier
// version sent, and whether each field crosses from one member to another.
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "server/service/proto_convert.h"
#include "tests/fuzz/wire_message.h"
#include "tests/golden/golden_file.h"

namespace syncline {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::UnknownFieldSet;
using google::protobuf::util::MessageDifferencer;

// ---- Fields ----

std::string KeyOf(const FieldDescriptor& field) {
  return absl::StrCat(field.containing_type()->full_name(), " ", field.number());
}

std::string Described(const FieldDescriptor& field) {
  const Descriptor* type = field.message_type();
  return absl::StrCat(field.name(), field.is_repeated() ? " repeated " : " ",
                      type == nullptr ? field.type_name() : type->full_name());
}

void AddFields(const Descriptor& type, std::map<std::string, std::string>& fields) {
  for (int i = 0; i < type.field_count(); ++i) {
    fields[KeyOf(*type.field(i))] = Described(*type.field(i));
  }
  for (int i = 0; i < type.nested_type_count(); ++i) {
    AddFields(*type.nested_type(i), fields);
  }
}

// proto/README.md: fields are added, but never renumbered or reused.
TEST(Goldens, NoFieldOfTheProtocolHasChanged) {
  const std::string path = GOLDEN_DATA "/coordinator.fields";
  std::map<std::string, std::string> fields;
  const auto& file = *v1::MemberMessage::descriptor()->file();
  for (int i = 0; i < file.message_type_count(); ++i) {
    AddFields(*file.message_type(i), fields);
  }
  std::map<std::string, std::string> goldens;
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    const size_t tab = line.find('\t');
    goldens[line.substr(0, tab)] = line.substr(tab + 1);
  }
  for (const auto& [key, golden] : goldens) {
    const auto now = fields.find(key);
    if (now != fields.end()) {
      EXPECT_EQ(now->second, golden) << key;
      continue;
    }
    const size_t space = key.find(' ');
    const Descriptor* type = file.pool()->FindMessageTypeByName(key.substr(0, space));
    EXPECT_TRUE(type != nullptr && type->IsReservedNumber(std::stoi(key.substr(space))))
        << key << " (" << golden << ") is gone and not reserved";
  }
  const size_t before = goldens.size();
  goldens.insert(fields.begin(), fields.end());
  if (goldens.size() == before) return;
  std::ofstream out(path);
  for (const auto& [key, golden] : goldens) out << key << '\t' << golden << '\n';
  ADD_FAILURE() << "there are new fields: look at the change of the file, and commit";
}

// ---- Messages ----

bool HasUnknown(const Message& message) {
  const auto& in = *message.GetReflection();
  if (!in.GetUnknownFields(message).empty()) return true;
  std::vector<const FieldDescriptor*> fields;
  in.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      if (HasUnknown(in.GetMessage(message, field))) return true;
      continue;
    }
    for (int i = 0; i < in.FieldSize(message, field); ++i) {
      if (HasUnknown(in.GetRepeatedMessage(message, field, i))) return true;
    }
  }
  return false;
}

template <typename MessageOfBody>
std::string NameOf(const MessageOfBody& message) {
  const auto& body = *MessageOfBody::descriptor()->FindOneofByName("body");
  return absl::StrCat(
      MessageOfBody::descriptor()->name(), ".",
      message.GetReflection()->GetOneofFieldDescriptor(message, &body)->name());
}

// Bodies that never reach the state machines, so they are not converted.
const std::set<std::string> kNotConverted = {
    "MemberMessage.trace_part", "MemberMessage.resume", "CoordinatorMessage.trace_order",
    "CoordinatorMessage.link_ready", "CoordinatorMessage.link_unknown"};

// Fields that are not the same after a conversion: the shell of a service fills them in,
// workers read them without a conversion, or keys are derived from them.
const std::set<std::string> kNotCrossing = {
    "syncline.v1.ServerHello.protocol_version",
    "syncline.v1.ServerHello.build_version",
    "syncline.v1.ServerHello.failure_timeout_ms",
    "syncline.v1.WorkerHello.protocol_version",
    "syncline.v1.WorkerHello.build_version",
    "syncline.v1.WorkerHello.failure_timeout_ms",
    "syncline.v1.Member.key",
    "syncline.v1.WorkerWelcome.shard_keys",
    "syncline.v1.WorkerWelcome.staleness",
    "syncline.v1.EpochChanged.moved",
    "syncline.v1.EpochChanged.staleness",
    "syncline.v1.ConfigureJob.name",   // it is in the declaration
    "syncline.v1.PhaseSums.seconds"};  // as many as this version has phases

v1::MemberMessage Converted(const v1::MemberMessage& message) {
  const auto body = FromProto(message);
  EXPECT_TRUE(body.ok()) << body.status();
  return body.ok() ? ToProto(*body) : v1::MemberMessage();
}

v1::CoordinatorMessage Converted(const v1::CoordinatorMessage& message) {
  auto body = FromProto(message);
  EXPECT_TRUE(body.ok()) << body.status();
  if (!body.ok()) return {};
  if (auto* configure = std::get_if<ConfigureJob>(&*body)) {
    const JobSpec& spec = configure->declared->spec;
    configure->declared = *MakeDeclaredJob(Declare(spec), spec);
  }
  SharedBytes shared;
  return ToProto(*body, shared);
}

// Says where `converted` differs from `message`; empty: nowhere.
std::string Difference(const Message& message, const Message& converted,
                       MessageDifferencer::Scope scope) {
  MessageDifferencer differencer;
  differencer.set_scope(scope);
  for (const std::string& name : kNotCrossing) {
    const auto* field = message.GetDescriptor()->file()->pool()->FindFieldByName(name);
    EXPECT_NE(field, nullptr) << name;
    if (field != nullptr) differencer.IgnoreField(field);
  }
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  return differencer.Compare(message, converted) ? "" : difference;
}

template <typename MessageOfBody>
void EachFieldCrosses(const std::vector<MessageOfBody>& messages) {
  for (const MessageOfBody& message : messages) {
    if (kNotConverted.contains(NameOf(message))) continue;
    EXPECT_EQ(Difference(message, Converted(message), MessageDifferencer::FULL), "")
        << NameOf(message);
  }
}

TEST(ControlMessages, EachFieldCrosses) {
  EachFieldCrosses(fuzz::MemberMessages());
  EachFieldCrosses(fuzz::CoordinatorMessages());
}

TEST(ControlMessages, EachFieldOfADeclarationCrosses) {
  v1::JobSpec message;
  fuzz::Fill(message);
  v1::JobSpec declared;
  ASSERT_TRUE(declared.ParseFromString(*Declare(FromProto(message)).bytes));
  EXPECT_EQ(Difference(message, declared, MessageDifferencer::FULL), "");
}

// The goldens lack the fields that are newer than they are.
template <typename MessageOfBody>
void StaysReadable(const std::vector<MessageOfBody>& filled, GoldenFile& goldens) {
  for (const MessageOfBody& message : filled) {
    const std::string name = NameOf(message);
    const std::string golden = goldens.Golden(name, message.SerializeAsString());
    MessageOfBody read;
    ASSERT_TRUE(read.ParseFromString(golden)) << name;
    EXPECT_FALSE(HasUnknown(read)) << name;
    EXPECT_EQ(NameOf(read), name);
    EXPECT_TRUE(read.SerializeAsString() == golden) << name;
    if (kNotConverted.contains(name)) continue;
    EXPECT_EQ(Difference(read, Converted(read), MessageDifferencer::PARTIAL), "") << name;
  }
}

TEST(Goldens, MessagesOfThisProtocolStayReadable) {
  GoldenFile goldens(GOLDEN_DATA "/messages.golden");
  StaysReadable(fuzz::MemberMessages(), goldens);
  StaysReadable(fuzz::CoordinatorMessages(), goldens);
}

}  // namespace
}  // namespace syncline
