#include "comm/transport/tcp/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"

namespace syncline {

static_assert(std::endian::native == std::endian::little);

FrameHead::FrameHead(ByteView header, size_t payload_bytes)
    : size(sizeof(FramePrefix) + header.size()) {
  SYNCLINE_CHECK(header.size() <= kMessageHeaderBytes);
  SYNCLINE_CHECK(payload_bytes <= kMaxMessagePayloadBytes);
  const FramePrefix prefix = {static_cast<uint32_t>(payload_bytes),
                              static_cast<uint16_t>(header.size()), 0};
  std::memcpy(bytes.data(), &prefix, sizeof(prefix));
  std::ranges::copy(header, bytes.begin() + sizeof(prefix));
}

FrameReader::FrameReader(Receiver& receiver, size_t staging_bytes)
    : receiver_(receiver), staging_(Buffer::Allocate(staging_bytes)) {
  SYNCLINE_CHECK(staging_bytes >= 2 * kMessageHeaderBytes);
}

std::array<iovec, 2> FrameReader::Space() {
  if (begin_ > 0 && staged() > 0) {  // less than a head: the rest was parsed
    std::memmove(staging_.data(), staging_.data() + begin_, staged());
  }
  end_ -= std::exchange(begin_, 0);
  const iovec staging = {staging_.data() + end_, staging_.size() - end_};
  if (part_ != Part::kPayload) return {staging, iovec{}};
  return {iovec{payload_.data() + landed_, prefix_.payload_bytes - landed_}, staging};
}

absl::Status FrameReader::Advance(size_t bytes) {
  if (part_ == Part::kPayload) {
    const size_t landed = std::min(bytes, prefix_.payload_bytes - landed_);
    landed_ += landed;
    bytes -= landed;
    if (landed_ == prefix_.payload_bytes) Deliver();
  }
  end_ += bytes;
  SYNCLINE_CHECK(end_ <= staging_.size());
  return Parse();
}

absl::Status FrameReader::Parse() {
  while (!stopped_) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool goes_on, ParsePart());
    if (!goes_on) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> FrameReader::ParsePart() {
  switch (part_) {
    case Part::kPrefix:
      if (staged() < sizeof(prefix_)) return false;
      SYNCLINE_RETURN_IF_ERROR(ParsePrefix());
      return true;
    case Part::kHeader:
      if (staged() < prefix_.header_bytes) return false;
      std::copy_n(staging_.data() + begin_, prefix_.header_bytes, header_.begin());
      begin_ += prefix_.header_bytes;
      BeginPayload();
      return true;
    case Part::kPayload:
      if (staged() == 0) return false;
      LandStaged();
      return true;
    case Part::kRefusedPayload:
      if (staged() == 0) return false;
      DropStaged();
      return true;
  }
  return false;
}

absl::Status FrameReader::ParsePrefix() {
  std::memcpy(&prefix_, staging_.data() + begin_, sizeof(prefix_));
  begin_ += sizeof(prefix_);
  if (prefix_.header_bytes > kMessageHeaderBytes || prefix_.zero != 0 ||
      prefix_.payload_bytes > kMaxMessagePayloadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame with a header of ", prefix_.header_bytes,
                     " bytes and a payload of ", prefix_.payload_bytes));
  }
  part_ = Part::kHeader;
  return absl::OkStatus();
}

void FrameReader::BeginPayload() {
  const ByteView header(header_.data(), prefix_.header_bytes);
  absl::StatusOr<Buffer> landing = receiver_.Allocate(header, prefix_.payload_bytes);
  landed_ = 0;
  if (!landing.ok()) {
    part_ = prefix_.payload_bytes > 0 ? Part::kRefusedPayload : Part::kPrefix;
    return;
  }
  SYNCLINE_CHECK(landing->size() >= prefix_.payload_bytes);
  payload_ = *std::move(landing);
  part_ = Part::kPayload;
  if (prefix_.payload_bytes == 0) Deliver();
}

void FrameReader::LandStaged() {
  const size_t bytes = std::min(staged(), prefix_.payload_bytes - landed_);
  std::memcpy(payload_.data() + landed_, staging_.data() + begin_, bytes);
  begin_ += bytes;
  landed_ += bytes;
  if (landed_ == prefix_.payload_bytes) Deliver();
}

void FrameReader::DropStaged() {
  const size_t bytes = std::min(staged(), prefix_.payload_bytes - landed_);
  begin_ += bytes;
  landed_ += bytes;
  if (landed_ == prefix_.payload_bytes) part_ = Part::kPrefix;
}

void FrameReader::Deliver() {
  part_ = Part::kPrefix;
  ++delivered_;
  if (stopped_) return;  // by Allocate
  receiver_.OnMessage({header_.data(), prefix_.header_bytes}, std::move(payload_));
  payload_ = Buffer();
}

}  // namespace syncline
