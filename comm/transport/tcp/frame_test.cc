#include "comm/transport/tcp/frame.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/transport/recording_receiver.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

ByteView Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string Text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string Begin(TrafficClass lane, const std::string& header, size_t payload_bytes,
                  const std::string& piece = "") {
  return Text(FrameHead(lane, Bytes(header), payload_bytes, piece.size()).view()) + piece;
}
std::string More(TrafficClass lane, const std::string& piece) {
  return Text(FrameHead(lane, piece.size()).view()) + piece;
}

// Returns the messages of the stream as "header=payload" if it arrives `step` bytes at a
// time.
std::vector<std::string> Read(const std::string& stream, size_t step,
                              RecordingReceiver& receiver) {
  FrameReader reader(receiver, 128);
  ByteView rest = Bytes(stream);
  while (!rest.empty()) {
    size_t left = std::min(step, rest.size()), put = 0;
    for (const iovec& space : reader.Space()) {
      const size_t bytes = std::min(left, space.iov_len);
      if (bytes > 0) std::memcpy(space.iov_base, rest.data(), bytes);
      rest = rest.subspan(bytes);
      left -= bytes;
      put += bytes;
    }
    EXPECT_TRUE(reader.Advance(put).ok());
  }
  std::vector<std::string> messages;
  for (const auto& message : receiver.messages) {
    messages.push_back(message.header + "=" + Text(message.payload.view()));
  }
  return messages;
}

TEST(FrameReader, PutsPiecesOfSeveralLanesTogether) {
  const std::string a(300, 'a'), b(1000, 'b');
  const std::string stream =
      Begin(TrafficClass::kOther, "late", 2000, b) +
      Begin(TrafficClass::kUrgent, "front", 600, a) +
      Begin(TrafficClass::kControl, "ack", 0) +
      Begin(TrafficClass::kBackground, "copy", 3, "c") + More(TrafficClass::kUrgent, a) +
      Begin(TrafficClass::kUrgent, "next", 2, "n") +
      More(TrafficClass::kBackground, "cc") + More(TrafficClass::kOther, b) +
      More(TrafficClass::kUrgent, "n");
  for (const size_t step : {1, 7, 8, 100, 1000, 100000}) {
    SCOPED_TRACE(step);
    RecordingReceiver receiver;
    EXPECT_THAT(Read(stream, step, receiver),
                ::testing::ElementsAre("ack=", absl::StrCat("front=", a, a), "copy=ccc",
                                       absl::StrCat("late=", b, b), "next=nn"));
  }
}

TEST(FrameReader, DropsAllPiecesOfWhatIsRefusedAndNothingElse) {
  const std::string stream =
      Begin(TrafficClass::kOther, "x", 600, std::string(300, 'x')) +
      Begin(TrafficClass::kUrgent, "front", 4, "ab") +
      Begin(TrafficClass::kControl, "x", 0) +
      More(TrafficClass::kOther, std::string(300, 'x')) +
      More(TrafficClass::kUrgent, "cd") + Begin(TrafficClass::kOther, "late", 1, "e");
  for (const size_t step : {1, 9, 1000}) {
    RecordingReceiver receiver;
    EXPECT_THAT(Read(stream, step, receiver),
                ::testing::ElementsAre("front=abcd", "late=e"));
    EXPECT_EQ(receiver.refused, 2);
  }
}

}  // namespace
}  // namespace syncline
