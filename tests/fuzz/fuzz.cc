#include "tests/fuzz/fuzz.h"

#include <bit>
#include <cmath>
#include <random>

#include "comm/base/check.h"

namespace syncline::fuzz {
namespace {

using Floats = std::vector<float>;

constexpr float kBefore = 3.5f;

void CheckUntouched(std::span<const float> values) {
  for (const float value : values) SYNCLINE_CHECK(value == kBefore);
}

// Checks for the same bits. All NaNs are equal, because the compiler may choose the bits
// of a NaN.
void CheckSame(std::span<const float> a, std::span<const float> b) {
  for (size_t i = 0; i < a.size(); ++i) {
    SYNCLINE_CHECK(std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i]) ||
                   (std::isnan(a[i]) && std::isnan(b[i])));
  }
}

void CheckRefusal(const Codec& codec, ByteView bytes, uint32_t elements) {
  Floats values(elements, kBefore);
  SYNCLINE_CHECK(absl::IsInvalidArgument(codec.Decode(bytes, values)));
  CheckUntouched(values);
  SYNCLINE_CHECK(absl::IsInvalidArgument(codec.DecodeAdd(bytes, 0.5f, values)));
  CheckUntouched(values);
  Bytes good(codec.MaxEncodedBytes(elements));
  good.resize(codec.Encode(SomeValues(elements, 1), {}, {}, good));
  const WeightedBytes parts[] = {{.bytes = good}, {.bytes = bytes}};
  SYNCLINE_CHECK(absl::IsInvalidArgument(codec.DecodeAddAll(parts, values)));
  CheckUntouched(values);
}

// The coefficients of an encoding must be those of its values. Servers refuse a tile that
// starts elsewhere.
void CheckBasis(const CodecBasis& basis, ByteView bytes, std::span<const float> decoded) {
  Floats values(decoded.size(), kBefore);
  const absl::Status read = basis.DecodeCoefficients(bytes, 0, values);
  if (!read.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(read));
    return CheckUntouched(values);
  }
  basis.FromCoefficients(0, values);
  CheckSame(values, decoded);
}

void CheckAccepted(const Codec& codec, ByteView bytes, uint32_t elements) {
  constexpr float kWeight = 0.5f;
  SYNCLINE_CHECK(codec.Nonzeros(bytes, elements) <= elements);
  Floats decoded(elements, kBefore);
  Floats again(elements, -kBefore);
  SYNCLINE_CHECK(codec.Decode(bytes, decoded).ok());
  SYNCLINE_CHECK(codec.Decode(bytes, again).ok());
  CheckSame(decoded, again);
  Floats sum(elements, kBefore);
  SYNCLINE_CHECK(codec.DecodeAdd(bytes, kWeight, sum).ok());
  for (size_t i = 0; i < sum.size(); ++i) again[i] = kBefore + kWeight * decoded[i];
  CheckSame(sum, again);
  SYNCLINE_CHECK(codec.DecodeAdd(bytes, -1, sum).ok());
  again.assign(elements, kBefore);
  const WeightedBytes parts[] = {{.bytes = bytes, .weight = kWeight},
                                 {.bytes = bytes, .weight = -1}};
  SYNCLINE_CHECK(codec.DecodeAddAll(parts, again).ok());
  CheckSame(sum, again);
  if (codec.basis() != nullptr) CheckBasis(*codec.basis(), bytes, decoded);
}

}  // namespace

uint32_t Reader::Take(size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes && !rest_.empty(); ++i) {
    value |= std::to_integer<uint32_t>(rest_.front()) << (8 * i);
    rest_ = rest_.subspan(1);
  }
  return value;
}

void Append(Bytes& input, uint32_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    input.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
}

void Append(Bytes& input, ByteView bytes) {
  input.insert(input.end(), bytes.begin(), bytes.end());
}

Bytes Seed(bool second_decoder, std::string_view text) {
  Bytes seed;
  Append(seed, second_decoder ? 1 : 0, 1);
  Append(seed, std::as_bytes(std::span(text)));
  return seed;
}

std::vector<std::string> TransferTexts() {
  std::vector<std::string> texts;
  for (const TransferPreset& preset : TransferPresets()) {
    texts.emplace_back(preset.name);
  }
  for (const char* values :
       {"bf16", "int8", "int4-stochastic", "int2", "onebit", "twobit"}) {
    for (const char* selector : {"topk:ratio=0.1", "randomk:ratio=0.5", "topk:ratio=1"}) {
      texts.push_back(std::string(selector) + ",values=" + values);
    }
  }
  texts.emplace_back("blocks:values=onebit");
  texts.emplace_back("twobit:block_log2=8");
  texts.emplace_back("powersgd:rank=1,fp32=1");
  texts.emplace_back("demo:ratio=0.1,values=onebit");
  for (const char* rotated : {"int8", "int4-stochastic", "terngrad", "onebit", "natural",
                              "topk:ratio=0.1,values=int4"}) {
    texts.push_back(std::string(rotated) + ":rotate=1");
  }
  return texts;
}

std::span<const Transfer> Transfers() {
  static const std::vector<Transfer> kTransfers = [] {
    std::vector<Transfer> transfers;
    for (const std::string& text : TransferTexts()) {
      const absl::StatusOr<Transfer> transfer = ParseTransfer(text);
      SYNCLINE_CHECK(transfer.ok());
      transfers.push_back(*transfer);
    }
    return transfers;
  }();
  return kTransfers;
}

std::vector<float> SomeValues(uint32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto magnitude = static_cast<float>(random() % 1024);
    value = random() % 4 == 0 ? 0 : magnitude * magnitude * 0x1p-20f;
    if (random() % 2 == 0) value = -value;
  }
  return values;
}

bool CheckCodec(const Codec& codec, ByteView bytes, uint32_t elements) {
  // The memory ends where the bytes end, so that AddressSanitizer finds a read beyond
  // them.
  const Bytes exact(bytes.begin(), bytes.end());
  const absl::Status status = codec.Validate(exact, elements);
  if (status.ok()) {
    CheckAccepted(codec, exact, elements);
  } else {
    SYNCLINE_CHECK(absl::IsInvalidArgument(status));
    CheckRefusal(codec, exact, elements);
  }
  return status.ok();
}

}  // namespace syncline::fuzz
