#include "comm/transport/message.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/crc32c.h"

namespace syncline {
namespace {

// The memory layout of the struct is the wire format; no bytes are swapped.
static_assert(std::endian::native == std::endian::little);
static_assert(offsetof(MessageHeader, header_crc) == kMessageHeaderBytes - 4);

// First flow of the averages and state of blocks. The flows of their views are below it.
constexpr uint64_t kAsideFlows = uint64_t{1} << 33;

constexpr size_t kCheckedBytes = offsetof(MessageHeader, header_crc);

ByteView BytesOf(const MessageHeader& header) {
  return {reinterpret_cast<const std::byte*>(&header), sizeof(header)};
}

bool IsKnownKind(uint16_t kind) {
  return kind >= static_cast<uint16_t>(MessageKind::kHello) &&
         kind <= static_cast<uint16_t>(MessageKind::kRecordAck);
}

}  // namespace

const char* RefuseCodeName(RefuseCode code) {
  switch (code) {
    case RefuseCode::kNone:
      return "none";
    case RefuseCode::kStaleEpoch:
      return "stale epoch";
    case RefuseCode::kFutureEpoch:
      return "future epoch";
    case RefuseCode::kNotMember:
      return "not a member";
    case RefuseCode::kUnknownBlock:
      return "unknown block";
    case RefuseCode::kMalformed:
      return "malformed";
    case RefuseCode::kWrongStep:
      return "wrong step";
    case RefuseCode::kUnauthenticated:
      return "unauthenticated";
    case RefuseCode::kNotSeeded:
      return "not seeded";
    case RefuseCode::kNoAverage:
      return "no average";
    case RefuseCode::kTooLate:
      return "too late";
  }
  return "unknown refusal";  // a newer peer may know more codes
}

Traffic TrafficOf(const MessageHeader& header, size_t payload_bytes, TrafficClass data) {
  const TrafficClass small =
      payload_bytes == 0 ? TrafficClass::kControl : TrafficClass::kBackground;
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kHello:
    case MessageKind::kWelcome:
      return {.traffic_class = TrafficClass::kControl};
    case MessageKind::kBackupHello:
    case MessageKind::kRecord:  // pieces are numbered, and follow their hello
      return {.traffic_class = TrafficClass::kBackground};
    case MessageKind::kRecordAck:
      return {.traffic_class = TrafficClass::kControl};
    case MessageKind::kPullAverage:
    case MessageKind::kAverage:
    case MessageKind::kPullState:
    case MessageKind::kState:
      return {small, kAsideFlows + header.block};
    default:
      return Traffic::OfBlock(payload_bytes == 0 ? TrafficClass::kControl : data,
                              header.block);
  }
}

ByteView SealHeader(MessageHeader& header) {
  const ByteView bytes = BytesOf(header);
  header.header_crc = Crc32c(bytes.first(kCheckedBytes));
  return bytes;
}

absl::StatusOr<MessageHeader> ParseHeader(ByteView bytes) {
  if (bytes.size() != kMessageHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("message header of ", bytes.size(),
                                                   " bytes, want ", kMessageHeaderBytes));
  }
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMessageMagic) {
    return absl::InvalidArgumentError("not a Syncline message: wrong magic");
  }
  // The CRC is checked before the version, because a damaged header says nothing about
  // the sender's version.
  if (header.header_crc != Crc32c(bytes.first(kCheckedBytes))) {
    return absl::InvalidArgumentError("damaged message header: CRC does not match");
  }
  if (header.version != kMessageVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message version ", header.version, ", this build speaks ", kMessageVersion));
  }
  if (!IsKnownKind(header.kind)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown message kind ", header.kind));
  }
  return header;
}

}  // namespace syncline
