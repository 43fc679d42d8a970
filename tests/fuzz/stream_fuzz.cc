// Fuzzes the bytes that a member sends on a TCP connection after the handshake.
//
//   offset  bytes
//   0       1      number of bytes that arrive at a time, minus one
//   1       1      1: the receiver refuses every other payload
//   2       rest   the stream
#include <algorithm>
#include <cstring>
#include <string>

#include "comm/base/check.h"
#include "comm/transport/tcp/address.h"
#include "comm/transport/tcp/frame.h"
#include "comm/transport/tcp/member_key.h"
#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {
namespace {

// Records the messages that arrive.
class Taker : public Receiver {
 public:
  explicit Taker(bool refuses) : refuses_(refuses) {}

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override {
    SYNCLINE_CHECK(header.size() <= kMessageHeaderBytes);
    SYNCLINE_CHECK(payload_bytes <= kMaxMessagePayloadBytes);
    if (refuses_ && ++asked_ % 2 == 0) return absl::PermissionDeniedError("refused");
    // At most one message per lane is under way, regardless of the announced sizes.
    SYNCLINE_CHECK(++held_ <= kTrafficClasses);
    // The fuzzer's streams are short, so larger messages never become complete.
    return Buffer::Allocate(payload_bytes);
  }
  void OnMessage(ByteView header, Buffer payload) override {
    --held_;
    messages.emplace_back(header.begin(), header.end());
    messages.emplace_back(payload.view().begin(), payload.view().end());
  }

  std::vector<Bytes> messages;

 private:
  const bool refuses_;
  int asked_ = 0;
  size_t held_ = 0;  // number of incomplete messages
};

// Returns the messages of `stream` if `step` bytes arrive at a time.
std::vector<Bytes> Read(ByteView stream, size_t step, bool refuses) {
  Taker taker(refuses);
  FrameReader reader(taker, 256);
  while (!stream.empty()) {
    size_t left = std::min(step, stream.size());
    size_t put = 0;
    for (const iovec& piece : reader.Space()) {
      const size_t bytes = std::min(left, piece.iov_len);
      if (bytes > 0) std::memcpy(piece.iov_base, stream.data(), bytes);
      stream = stream.subspan(bytes);
      put += bytes;
      left -= bytes;
    }
    SYNCLINE_CHECK(put > 0);
    const absl::Status status = reader.Advance(put);
    if (status.ok()) continue;
    SYNCLINE_CHECK(absl::IsInvalidArgument(status));
    break;
  }
  return taker.messages;
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (const size_t payload : {0, 1, 100, 300, 5000}) {
    Bytes& seed = seeds.emplace_back();
    Append(seed, static_cast<uint32_t>(payload % 256), 1);
    Append(seed, payload % 3 == 0 ? 1 : 0, 1);
    for (size_t header = 0; header <= kMessageHeaderBytes; header += 16) {
      const Bytes bytes(header + payload, std::byte{7});
      const auto lane = static_cast<TrafficClass>(header / 16 % kTrafficClasses);
      Append(seed,
             FrameHead(lane, ByteView(bytes).first(header), payload, payload).view());
      Append(seed, ByteView(bytes).subspan(header));
    }
  }
  // A seed with interleaved pieces of all lanes.
  Bytes& seed = seeds.emplace_back();
  Append(seed, 100, 1);
  Append(seed, 0, 1);
  const Bytes bytes(300, std::byte{9});
  for (const size_t begun : {0, 100, 200}) {
    for (uint8_t i = 0; i < kTrafficClasses; ++i) {
      const auto lane = static_cast<TrafficClass>(i);
      const size_t piece = i % 2 == 0 ? 100 : 50;
      const FrameHead head =
          begun == 0 ? FrameHead(lane, ByteView(bytes).first(i), 3 * piece, piece)
                     : FrameHead(lane, piece);
      Append(seed, head.view());
      Append(seed, ByteView(bytes).first(piece));
    }
  }
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  const size_t step = input.Take(1) + 1;
  const bool refuses = (input.Take(1) & 1) != 0;
  // The messages do not depend on how the stream is cut.
  SYNCLINE_CHECK(fuzz::Read(input.rest(), step, refuses) ==
                 fuzz::Read(input.rest(), 1 << 20, refuses));
  // A name or address that parses is written the same way.
  const ByteView rest = input.rest();
  const std::string name(reinterpret_cast<const char*>(rest.data()), rest.size());
  if (const auto identity = ParseIdentity(name)) {
    SYNCLINE_CHECK(EncodeIdentity(*identity) == name);
  }
  if (const auto address = ParseTcpAddress(name); address.ok()) {
    SYNCLINE_CHECK(ParseTcpAddress("tcp:" + DescribeAddress(*address)).ok());
  }
  return 0;
}
