#include "tests/fuzz/wire_message.h"

#include <cstdint>
#include <iterator>
#include <limits>
#include <string>

#include "absl/strings/str_format.h"
#include "comm/base/check.h"
#include "server/service/job_convert.h"

namespace syncline::fuzz {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr uint64_t kInteresting[] = {0,
                                     1,
                                     2,
                                     3,
                                     7,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     0x100000000,
                                     0x7fffffffffffffff,
                                     uint64_t{1} << 63,
                                     ~uint64_t{0}};
constexpr double kInterestingReals[] = {
    0, -0.0, 1, -1, 0.5, 1e-300, 1e300, -1e300, kNan, -kNan, kInfinity, -kInfinity};
constexpr const char* kInterestingTexts[] = {
    "",    "a",   "job", "run",   "disk",  "peer", "asp", "bsp",  "ssp", "staleness",
    "sgd", "lr",  "f32", "adamw", "bf16",  "topk", "..",  "a/b",  "\n",  "\xc3\xbc",
    "-1",  "1e9", "nan", "auto",  "exact", "2",    "%s",  "\t\"'"};

// The messages that are inside of others as bytes.
std::string SerializedInside(const FieldDescriptor& field) {
  if (field.name() == "spec") return *Declare(SomeJob()).bytes;
  if (field.name() == "placement") {
    v1::Placement placement;
    placement.add_shard_of_block(0);
    placement.add_shard_of_block(1);
    return placement.SerializeAsString();
  }
  v1::ShardAddresses addresses;
  addresses.add_addresses("first");
  addresses.add_addresses("second");
  return addresses.SerializeAsString();
}

bool IsSerializedInside(const FieldDescriptor& field) {
  return field.type() == FieldDescriptor::TYPE_BYTES && !field.is_repeated() &&
         (field.name() == "spec" || field.name() == "placement" ||
          field.name() == "shard_addresses");
}

// Sets fields, one after another, to values that count up.
class Filler {
 public:
  void Fill(Message& message) {
    const Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (field.real_containing_oneof() != nullptr) continue;
      for (int one = 0; one < (field.is_repeated() ? 2 : 1); ++one) Set(message, field);
    }
  }

 private:
  // Texts are in ascending order, because options are sorted by name. Bytes are as long
  // as keys.
  std::string Text(const FieldDescriptor& field) {
    if (IsSerializedInside(field)) return SerializedInside(field);
    const std::string text = absl::StrFormat("text%04d", ++last_);
    if (field.type() == FieldDescriptor::TYPE_STRING) return text;
    return text + std::string(32 - text.size(), '.');
  }

  // Sets the field, or adds an element to it.
  void Set(Message& message, const FieldDescriptor& field) {
    const Reflection& in = *message.GetReflection();
    const bool adds = field.is_repeated();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        Fill(adds ? *in.AddMessage(&message, &field)
                  : *in.MutableMessage(&message, &field));
        return;
      case FieldDescriptor::CPPTYPE_STRING:
        adds ? in.AddString(&message, &field, Text(field))
             : in.SetString(&message, &field, Text(field));
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        return in.SetBool(&message, &field, true);
      case FieldDescriptor::CPPTYPE_INT32:
        return in.SetInt32(&message, &field, -(++last_));
      case FieldDescriptor::CPPTYPE_INT64:
        return in.SetInt64(&message, &field, -(++last_));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return in.SetFloat(&message, &field, static_cast<float>(++last_) / 4);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        adds ? in.AddDouble(&message, &field, ++last_ / 4.0)
             : in.SetDouble(&message, &field, ++last_ / 4.0);
        return;
      case FieldDescriptor::CPPTYPE_UINT32:
        adds ? in.AddUInt32(&message, &field, static_cast<uint32_t>(++last_))
             : in.SetUInt32(&message, &field, static_cast<uint32_t>(++last_));
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        adds ? in.AddUInt64(&message, &field, static_cast<uint64_t>(++last_))
             : in.SetUInt64(&message, &field, static_cast<uint64_t>(++last_));
        return;
      case FieldDescriptor::CPPTYPE_ENUM:
        SYNCLINE_CHECK(false);  // the protocol has none
    }
  }

  int last_ = 0;
};

template <typename MessageOfBody>
std::vector<MessageOfBody> FilledBodies() {
  std::vector<MessageOfBody> all;
  const auto& bodies = *MessageOfBody::descriptor()->FindOneofByName("body");
  for (int i = 0; i < bodies.field_count(); ++i) {
    MessageOfBody& message = all.emplace_back();
    Fill(*message.GetReflection()->MutableMessage(&message, bodies.field(i)));
  }
  return all;
}

template <typename Values>
auto OneOf(const Values& values, std::mt19937& random) {
  return values[random() % std::size(values)];
}

std::string RandomText(const FieldDescriptor& field, std::mt19937& random) {
  if (field.type() == FieldDescriptor::TYPE_STRING) {
    const std::string text = OneOf(kInterestingTexts, random);
    return random() % 16 == 0 ? text + std::string(random() % 3000, 'x') : text;
  }
  if (IsSerializedInside(field) && random() % 2 == 0) return SerializedInside(field);
  return std::string(31 + random() % 3, static_cast<char>(random()));
}

// Replaces a value, or adds one to a list.
void AlterValue(Message& message, const FieldDescriptor& field, std::mt19937& random) {
  const Reflection& in = *message.GetReflection();
  const bool adds = field.is_repeated();
  const uint64_t number = OneOf(kInteresting, random);
  const double real = OneOf(kInterestingReals, random);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      adds ? in.AddString(&message, &field, RandomText(field, random))
           : in.SetString(&message, &field, RandomText(field, random));
      return;
    case FieldDescriptor::CPPTYPE_BOOL:
      return in.SetBool(&message, &field, number % 2 != 0);
    case FieldDescriptor::CPPTYPE_INT32:
      return in.SetInt32(&message, &field, static_cast<int32_t>(number));
    case FieldDescriptor::CPPTYPE_INT64:
      return in.SetInt64(&message, &field, static_cast<int64_t>(number));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return in.SetFloat(&message, &field, static_cast<float>(real));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      adds ? in.AddDouble(&message, &field, real) : in.SetDouble(&message, &field, real);
      return;
    case FieldDescriptor::CPPTYPE_UINT32:
      adds ? in.AddUInt32(&message, &field, static_cast<uint32_t>(number))
           : in.SetUInt32(&message, &field, static_cast<uint32_t>(number));
      return;
    case FieldDescriptor::CPPTYPE_UINT64:
      adds ? in.AddUInt64(&message, &field, number)
           : in.SetUInt64(&message, &field, number);
      return;
    case FieldDescriptor::CPPTYPE_MESSAGE:
    case FieldDescriptor::CPPTYPE_ENUM:
      return;
  }
}

void AlterOne(Message& message, std::mt19937& random) {
  const Descriptor& type = *message.GetDescriptor();
  const Reflection& in = *message.GetReflection();
  if (type.field_count() == 0) return;
  const FieldDescriptor* field =
      type.field(static_cast<int>(random() % static_cast<uint32_t>(type.field_count())));
  // The body of a message stays what it is.
  if (const auto* body = field->real_containing_oneof(); body != nullptr) {
    field = in.GetOneofFieldDescriptor(message, body);
    if (field == nullptr) return;
  } else if (random() % 8 == 0) {
    return in.ClearField(&message, field);
  }
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    return AlterValue(message, *field, random);
  }
  if (!field->is_repeated()) return AlterOne(*in.MutableMessage(&message, field), random);
  const int size = in.FieldSize(message, field);
  if (size == 0 || random() % 8 == 0) {
    AlterOne(*in.AddMessage(&message, field), random);
  } else {
    const auto at = static_cast<int>(random() % static_cast<uint32_t>(size));
    AlterOne(*in.MutableRepeatedMessage(&message, field, at), random);
  }
}

}  // namespace

JobSpec SomeJob() {
  JobSpec job = {.name = "job", .workers = 2};
  job.settings.push_codec = "bf16";
  job.settings.publish_codec = "bf16";
  job.training.optimizer = {.name = "adamw", .options = {{"lr", 0.5}}};
  job.training.gradient = {{"clip_global_norm", 1}};
  job.tensors = {{.name = "a", .shape = {10, 10}, .group = {.options = {{"lr", 0.25}}}},
                 {.name = "b", .shape = {3}}};
  return job;
}

void Fill(Message& message) { Filler().Fill(message); }

std::vector<v1::MemberMessage> MemberMessages() {
  return FilledBodies<v1::MemberMessage>();
}

std::vector<v1::CoordinatorMessage> CoordinatorMessages() {
  return FilledBodies<v1::CoordinatorMessage>();
}

void Alter(Message& message, std::mt19937& random) {
  const uint32_t changes = 1 + random() % 4;
  for (uint32_t i = 0; i < changes; ++i) AlterOne(message, random);
}

}  // namespace syncline::fuzz
