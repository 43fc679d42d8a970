#include "comm/rpc/job_settings_proto.h"

#include <string>
#include <string_view>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A field of a message by its path: "checkpoint.keep" is the field `keep` of
// `checkpoint`. A row of the table whose path names no field is a bug, which shows with
// the first job.
template <typename MessageOrConst>
struct Place {
  MessageOrConst& message;
  const FieldDescriptor& field;
};

const FieldDescriptor& FieldOf(const Message& message, const std::string& name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  SYNCLINE_CHECK(field != nullptr);
  return *field;
}

Place<Message> Find(Message& message, const std::string& path) {
  const size_t dot = path.find('.');
  const FieldDescriptor& field = FieldOf(message, path.substr(0, dot));
  if (dot == std::string::npos) return {message, field};
  Message& inner = *message.GetReflection()->MutableMessage(&message, &field);
  return Find(inner, path.substr(dot + 1));
}

Place<const Message> Find(const Message& message, const std::string& path) {
  const size_t dot = path.find('.');
  const FieldDescriptor& field = FieldOf(message, path.substr(0, dot));
  if (dot == std::string::npos) return {message, field};
  const Message& inner = message.GetReflection()->GetMessage(message, &field);
  return Find(inner, path.substr(dot + 1));
}

// ---- Writing and reading, by the type of the value ----

void Write(const std::string& value, const std::string& path, Message& job) {
  const auto [message, field] = Find(job, path);
  message.GetReflection()->SetString(&message, &field, value);
}
void Write(uint32_t value, const std::string& path, Message& job) {
  const auto [message, field] = Find(job, path);
  message.GetReflection()->SetUInt32(&message, &field, value);
}
void Write(uint64_t value, const std::string& path, Message& job) {
  const auto [message, field] = Find(job, path);
  message.GetReflection()->SetUInt64(&message, &field, value);
}
void Write(double value, const std::string& path, Message& job) {
  const auto [message, field] = Find(job, path);
  message.GetReflection()->SetDouble(&message, &field, value);
}
// A CheckpointEvery is stored in two fields.
void Write(const CheckpointEvery& value, const std::string& path, Message& job) {
  Write(value.steps, absl::StrCat(path, "_steps"), job);
  Write(value.seconds, absl::StrCat(path, "_seconds"), job);
}

void Read(const Message& job, const std::string& path, std::string& value) {
  const auto [message, field] = Find(job, path);
  const auto& reflection = *message.GetReflection();
  if (reflection.HasField(message, &field)) value = reflection.GetString(message, &field);
}
void Read(const Message& job, const std::string& path, uint32_t& value) {
  const auto [message, field] = Find(job, path);
  const auto& reflection = *message.GetReflection();
  if (reflection.HasField(message, &field)) value = reflection.GetUInt32(message, &field);
}
void Read(const Message& job, const std::string& path, uint64_t& value) {
  const auto [message, field] = Find(job, path);
  value = message.GetReflection()->GetUInt64(message, &field);
}
void Read(const Message& job, const std::string& path, double& value) {
  const auto [message, field] = Find(job, path);
  value = message.GetReflection()->GetDouble(message, &field);
}
void Read(const Message& job, const std::string& path, CheckpointEvery& value) {
  Read(job, absl::StrCat(path, "_steps"), value.steps);
  Read(job, absl::StrCat(path, "_seconds"), value.seconds);
}

}  // namespace

void ToProto(const JobSettings& settings, v1::JobSpec& job) {
  const JobSettings defaults;
  for (const JobSetting& setting : kJobSettings) {
    std::visit(
        [&](auto member) {
          const bool is_default = settings.*member == defaults.*member;
          if (is_default && setting.leaves_out_default) return;
          Write(settings.*member, std::string(setting.field), job);
        },
        setting.member);
  }
}

JobSettings JobSettingsOf(const v1::JobSpec& job) {
  JobSettings settings;
  for (const JobSetting& setting : kJobSettings) {
    std::visit(
        [&](auto member) { Read(job, std::string(setting.field), settings.*member); },
        setting.member);
  }
  return settings;
}

}  // namespace syncline
