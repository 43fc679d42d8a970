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

FrameHead::FrameHead(TrafficClass lane, ByteView header, size_t payload_bytes,
                     size_t piece_bytes) {
  SYNCLINE_CHECK(header.size() <= kMessageHeaderBytes);
  SYNCLINE_CHECK(piece_bytes <= payload_bytes &&
                 payload_bytes <= kMaxMessagePayloadBytes);
  Add({.bytes = static_cast<uint32_t>(payload_bytes),
       .header_bytes = static_cast<uint16_t>(header.size()),
       .lane = static_cast<uint8_t>(lane)});
  std::ranges::copy(header, bytes.begin() + size);
  size += header.size();
  if (piece_bytes == 0) return;
  Add({.bytes = static_cast<uint32_t>(piece_bytes),
       .lane = static_cast<uint8_t>(lane),
       .kind = FrameKind::kPiece});
}

FrameHead::FrameHead(TrafficClass lane, size_t piece_bytes) {
  Add({.bytes = static_cast<uint32_t>(piece_bytes),
       .lane = static_cast<uint8_t>(lane),
       .kind = FrameKind::kPiece});
}

void FrameHead::Add(const FramePrefix& prefix) {
  std::memcpy(bytes.data() + size, &prefix, sizeof(prefix));
  size += sizeof(prefix);
}

FrameReader::FrameReader(Receiver& receiver, size_t staging_bytes)
    : receiver_(receiver), staging_(Buffer::Allocate(staging_bytes)) {
  SYNCLINE_CHECK(staging_bytes >= 2 * kMessageHeaderBytes);
}

std::array<iovec, 2> FrameReader::Space() {
  if (begin_ > 0 && staged() > 0) {  // less than a head: everything before it was parsed
    std::memmove(staging_.data(), staging_.data() + begin_, staged());
  }
  end_ -= std::exchange(begin_, 0);
  const iovec staging = {staging_.data() + end_, staging_.size() - end_};
  if (part_ != Part::kPiece || lane().is_refused) return {staging, iovec{}};
  return {iovec{lane().payload.data() + lane().landed, piece_left_}, staging};
}

absl::Status FrameReader::Advance(size_t bytes) {
  if (part_ == Part::kPiece && !lane().is_refused) {
    const size_t landed = std::min(bytes, piece_left_);
    bytes -= landed;
    Landed(landed);
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
      if (staged() < lane().header_bytes) return false;
      std::copy_n(staging_.data() + begin_, lane().header_bytes, lane().header.begin());
      begin_ += lane().header_bytes;
      BeginPayload();
      return true;
    case Part::kPiece:
      if (staged() == 0) return false;
      LandStaged();
      return true;
  }
  return false;
}

absl::Status FrameReader::ParsePrefix() {
  std::memcpy(&prefix_, staging_.data() + begin_, sizeof(prefix_));
  begin_ += sizeof(prefix_);
  if (prefix_.lane >= kTrafficClasses) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame for lane ", int{prefix_.lane}, " of ", kTrafficClasses));
  }
  if (prefix_.kind == FrameKind::kPiece) return BeginPiece();
  if (prefix_.kind != FrameKind::kMessage || prefix_.header_bytes > kMessageHeaderBytes ||
      prefix_.bytes > kMaxMessagePayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a frame of kind ", static_cast<int>(prefix_.kind), " with a header of ",
        prefix_.header_bytes, " bytes and a payload of ", prefix_.bytes));
  }
  if (lane().is_open) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message begins in lane ", int{prefix_.lane},
                     ", where another one is not complete"));
  }
  lane().payload_bytes = prefix_.bytes;
  lane().header_bytes = prefix_.header_bytes;
  part_ = Part::kHeader;
  return absl::OkStatus();
}

absl::Status FrameReader::BeginPiece() {
  const size_t left = lane().is_open ? lane().payload_bytes - lane().landed : 0;
  if (prefix_.header_bytes != 0 || prefix_.bytes == 0 || prefix_.bytes > left) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a piece of ", prefix_.bytes, " bytes with a header of ", prefix_.header_bytes,
        " in lane ", int{prefix_.lane}, ", where ", left, " bytes are missing"));
  }
  piece_left_ = prefix_.bytes;
  part_ = Part::kPiece;
  return absl::OkStatus();
}

void FrameReader::BeginPayload() {
  part_ = Part::kPrefix;
  Lane& begun = lane();
  const ByteView header(begun.header.data(), begun.header_bytes);
  absl::StatusOr<Buffer> landing = receiver_.Allocate(header, begun.payload_bytes);
  begun.landed = 0;
  begun.is_refused = !landing.ok();
  begun.is_open = begun.payload_bytes > 0;
  if (begun.is_refused) return;
  SYNCLINE_CHECK(landing->size() >= begun.payload_bytes);
  begun.payload = *std::move(landing);
  if (!begun.is_open) Deliver(begun);
}

void FrameReader::LandStaged() {
  const size_t bytes = std::min(staged(), piece_left_);
  if (!lane().is_refused) {
    std::memcpy(lane().payload.data() + lane().landed, staging_.data() + begin_, bytes);
  }
  begin_ += bytes;
  Landed(bytes);
}

void FrameReader::Landed(size_t bytes) {
  Lane& landing = lane();
  landing.landed += bytes;
  piece_left_ -= bytes;
  if (piece_left_ > 0) return;
  part_ = Part::kPrefix;
  if (landing.landed < landing.payload_bytes) return;
  landing.is_open = false;
  if (!landing.is_refused) Deliver(landing);
}

void FrameReader::Deliver(Lane& lane) {
  ++delivered_;
  Buffer payload = std::exchange(lane.payload, Buffer());
  if (stopped_) return;  // Allocate may have called Stop()
  receiver_.OnMessage({lane.header.data(), lane.header_bytes}, std::move(payload));
}

}  // namespace syncline
