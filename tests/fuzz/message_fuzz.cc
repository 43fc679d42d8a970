// Fuzzes a message header.
//
//   offset  bytes
//   0       1      1: correct the CRC before parsing
//   1       rest   the header
#include <cstring>

#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/transport/message.h"
#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {
namespace {

void CheckHeader(ByteView bytes) {
  const absl::StatusOr<MessageHeader> header = ParseHeader(bytes);
  if (!header.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(header.status()));
    return;
  }
  // Sealing the parsed header gives the same bytes.
  MessageHeader again = *header;
  const ByteView sealed = SealHeader(again);
  SYNCLINE_CHECK(sealed.size() == bytes.size());
  SYNCLINE_CHECK(std::memcmp(sealed.data(), bytes.data(), bytes.size()) == 0);
  SYNCLINE_CHECK(RefuseCodeName(static_cast<RefuseCode>(header->code)) != nullptr);
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (uint16_t kind = static_cast<uint16_t>(MessageKind::kHello);
       kind <= static_cast<uint16_t>(MessageKind::kRecordAck); ++kind) {
    MessageHeader header = {.kind = kind, .job = 3, .rank = 1, .epoch = 7, .step = 41};
    header.session_key = 0x0123456789abcdef;
    Bytes& seed = seeds.emplace_back();
    Append(seed, kind % 2, 1);
    Append(seed, SealHeader(header));
  }
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  const bool repairs = (input.Take(1) & 1) != 0;
  fuzz::Bytes bytes(input.rest().begin(), input.rest().end());
  if (repairs && bytes.size() == kMessageHeaderBytes) {
    const uint32_t crc = Crc32c(ByteView(bytes).first(kMessageHeaderBytes - 4));
    std::memcpy(bytes.data() + kMessageHeaderBytes - 4, &crc, 4);
  }
  fuzz::CheckHeader(bytes);
  return 0;
}
