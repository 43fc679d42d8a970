#include "comm/rpc/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/any.pb.h"
#include "google/protobuf/unknown_field_set.h"

namespace syncline {
namespace {

// The fields of google.rpc.Status by number: Debian has no generated code for it.
constexpr int kCodeField = 1;
constexpr int kMessageField = 2;
constexpr int kDetailsField = 3;

std::string EncodeDetails(const absl::Status& status) {
  google::protobuf::UnknownFieldSet details;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    google::protobuf::Any any;
    any.set_type_url(std::string(url));
    any.set_value(std::string(value));
    details.AddLengthDelimited(kDetailsField, any.SerializeAsString());
  });
  if (details.empty()) return "";
  details.AddVarint(kCodeField, static_cast<uint64_t>(status.code()));
  details.AddLengthDelimited(kMessageField, std::string(status.message()));
  std::string bytes;
  details.SerializeToString(&bytes);
  return bytes;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()), EncodeDetails(status));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
  // Details that cannot be parsed come from another program. Code and message are still
  // valid.
  google::protobuf::UnknownFieldSet details;
  if (!details.ParseFromString(status.error_details())) return result;
  for (int i = 0; i < details.field_count(); ++i) {
    const google::protobuf::UnknownField& field = details.field(i);
    google::protobuf::Any any;
    if (field.number() == kDetailsField &&
        field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED &&
        any.ParseFromString(field.length_delimited())) {
      result.SetPayload(any.type_url(), absl::Cord(any.value()));
    }
  }
  return result;
}

}  // namespace syncline
