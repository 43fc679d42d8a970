#include "comm/codec/sparse/sparse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/codec/sparse/index_coder.h"
#include "comm/codec/sparse/index_list.h"

namespace syncline {
namespace {

// Exactly this layout on the wire.
struct SparseHeader {
  uint32_t nonzeros = 0;
  uint16_t values = 0;  // CodecId
  uint8_t coder = 0;    // IndexCoder
  uint8_t rice_bits = 0;
  uint32_t index_bytes = 0;
};
static_assert(sizeof(SparseHeader) == 12);

// An encoding whose values were not examined.
struct Listed {
  SparseHeader header = {};
  IndexList positions;
  ByteView values = {};
};

absl::StatusOr<Listed> ReadListed(ByteView bytes, uint32_t elements) {
  SparseHeader header;
  if (bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparse tile of ", bytes.size(), " bytes is shorter than a header"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes = bytes.subspan(sizeof(header));
  if (elements > kTileElements || header.nonzeros > elements) {
    return absl::InvalidArgumentError(absl::StrCat("sparse tile claims ", header.nonzeros,
                                                   " values of ", elements, " elements"));
  }
  if (header.index_bytes > bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparse tile claims ", header.index_bytes, " bytes of indices, but ",
                     bytes.size(), " follow"));
  }
  Listed listed{.header = header,
                .positions = IndexList(header.nonzeros),
                .values = bytes.subspan(header.index_bytes)};
  const IndexClaim claim = {.coding = {.coder = static_cast<IndexCoder>(header.coder),
                                       .rice_bits = header.rice_bits,
                                       .bytes = header.index_bytes},
                            .count = header.nonzeros,
                            .n = elements};
  SYNCLINE_RETURN_IF_ERROR(
      ReadIndices(bytes.first(header.index_bytes), claim, listed.positions));
  return listed;
}

// A checked encoding.
struct Sent {
  IndexList positions;
  const Codec* codec = nullptr;  // codec of the values
  ByteView bytes = {};
};

class SparseCodec final : public Codec {
 public:
  explicit SparseCodec(SparseOptions options) : options_(std::move(options)) {}

  CodecId id() const override { return CodecId::kSparse; }
  std::string_view name() const override { return options_.name; }
  CodecTraits traits() const override;
  size_t MaxEncodedBytes(uint32_t elements) const override;
  size_t MemoryValues(uint32_t /*elements*/) const override {
    return selector().kind == SelectorKind::kTopKReuse ? 1 : 0;
  }
  std::optional<DeviceForm> device_form() const override;
  size_t Encode(std::span<const float> values, std::span<float> residual,
                const EncodeContext& context, MutableByteView out) const override;
  absl::Status DecodeAdd(ByteView bytes, float weight,
                         std::span<float> accumulator) const override;
  absl::Status Decode(ByteView bytes, std::span<float> out) const override;
  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    return Parse(bytes, elements).status();
  }
  uint32_t Nonzeros(ByteView bytes, uint32_t elements) const override;

 private:
  const SelectorSpec& selector() const { return options_.selector; }
  std::vector<float> Gather(std::span<const float> values,
                            const Selection& selection) const;
  const Codec* FindValues(uint16_t id) const;
  // Returns the maximum size of this many values with any of the accepted codecs.
  size_t MaxValueBytes(uint32_t values) const;
  absl::StatusOr<Sent> Parse(ByteView bytes, uint32_t elements) const;

  const SparseOptions options_;
};

IndexCoding CodingOf(const SelectorSpec& spec, const Selection& selection, uint32_t n) {
  if (spec.kind == SelectorKind::kRandomK) return kSeedCoding;
  if (spec.kind == SelectorKind::kBlocks) return BlockCoding(n);
  return ChooseIndexCoding(selection.indices.view(), n);
}

// Returns the least share of the squared norm that is sent, for any tile. k is rounded
// down, so a tile worth almost two values sends one. A warm-up only sends more.
double LeastShare(const SelectorSpec& spec) {
  switch (spec.kind) {
    case SelectorKind::kTopK:
      // With the scope of a tensor, a tile may send nothing.
      if (spec.scope == SelectorScope::kTensor) return 0;
      return spec.ratio < 1 ? spec.ratio / 2 : 1;
    case SelectorKind::kTopKSampled:
    case SelectorKind::kTopKReuse:
      return spec.ratio / 3;  // ceil(k / 2) of n; worst case: k = 2.99, wants 2, sends 1
    case SelectorKind::kBlocks:
      return 1;
    case SelectorKind::kRandomK:
      return spec.ratio < 1 ? 0 : 1;
    case SelectorKind::kProportional:  // sent values may be larger than the originals
    case SelectorKind::kThreshold:     // no value may be above it
      return 0;
  }
  return 0;
}

// Whether values that are sent compensate for those that are not.
bool MakesUp(const SelectorSpec& spec) {
  return spec.kind == SelectorKind::kProportional ||
         (spec.kind == SelectorKind::kRandomK && spec.scale == RandomKScale::kUnbiased);
}

CodecTraits SparseCodec::traits() const {
  const CodecTraits of_values = options_.values->traits();
  CodecTraits traits = {.finite_only = true, .strip = kTileElements};
  const bool scaled = MakesUp(selector());
  traits.unbiased =
      of_values.unbiased && (scaled || selector().kind == SelectorKind::kBlocks);
  traits.largest = of_values.largest;
  if (scaled) {
    // n / k; kProportional reaches it if all magnitudes are equal.
    const double most = selector().ratio < 1 ? 2 / selector().ratio : 1;
    // Larger values would be clamped.
    const bool is_limited = of_values.largest < std::numeric_limits<float>::max();
    if (is_limited) traits.largest /= static_cast<float>(most);
    traits.variance = (1 + of_values.variance) * most - 1;
    return traits;
  }
  // A memory does not help values that are rounded at random and clipped as well
  // (terngrad). It does help others, since their errors stay small for the few selected
  // values.
  const bool is_clipped = !of_values.unbiased && of_values.variance >= 1;
  if (traits.unbiased || is_clipped) traits.variance = of_values.variance;
  // If the values are rounded at random, this holds in the mean.
  const double kept =
      of_values.unbiased ? std::max(0.0, 1 - of_values.variance) : of_values.contraction;
  traits.contraction = LeastShare(selector()) * kept;
  return traits;
}

// Includes all accepted codecs: for one or two values, int8 with its scale takes more
// bytes than FP32.
size_t SparseCodec::MaxValueBytes(uint32_t values) const {
  size_t bytes = options_.values->MaxEncodedBytes(values);
  for (const auto& codec : options_.also_decoded) {
    bytes = std::max(bytes, codec->MaxEncodedBytes(values));
  }
  return bytes;
}

size_t SparseCodec::MaxEncodedBytes(uint32_t elements) const {
  const uint32_t most = MaxSelected(selector(), elements);
  const size_t all_values = MaxValueBytes(most);
  if (selector().kind == SelectorKind::kRandomK) {
    return sizeof(SparseHeader) + kSeedCoding.bytes + all_values;
  }
  if (selector().kind == SelectorKind::kBlocks) {
    return sizeof(SparseHeader) + BlockCoding(elements).bytes + all_values;
  }
  const size_t bitmap = (size_t{elements} + 7) / 8;
  if (most < elements) {
    return sizeof(SparseHeader) + std::min(bitmap, most * sizeof(uint16_t)) + all_values;
  }
  // If all values are sent, there are no indices.
  const uint32_t but_few = LargestListed(elements);
  return sizeof(SparseHeader) + std::max(all_values, bitmap + MaxValueBytes(but_few));
}

std::optional<DeviceForm> SparseCodec::device_form() const {
  const SelectorSpec& spec = selector();
  const CodecId values = options_.values->id();
  const bool has_kernel = spec.kind == SelectorKind::kTopK &&
                          spec.scope == SelectorScope::kTile && spec.warmup.steps == 0 &&
                          spec.chunk_log2 == kMaxChunkLog2 &&
                          (values == CodecId::kFp32 || values == CodecId::kBf16);
  if (!has_kernel) return std::nullopt;
  return DeviceForm{.ratio = spec.ratio, .values = values};
}

std::vector<float> SparseCodec::Gather(std::span<const float> values,
                                       const Selection& selection) const {
  std::vector<float> gathered;
  gathered.reserve(selection.indices.count());
  for (const uint16_t i : selection.indices.view()) gathered.push_back(values[i]);
  if (!MakesUp(selector()) || gathered.empty()) return gathered;
  if (selector().kind == SelectorKind::kProportional) {
    for (float& value : gathered) {
      value = std::copysign(std::max(std::abs(value), selection.least), value);
    }
    return gathered;
  }
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float scale =
      static_cast<float>(values.size()) / static_cast<float>(gathered.size());
  // Codecs of the values may not support infinity.
  for (float& value : gathered) value = std::clamp(value * scale, -kLargest, kLargest);
  return gathered;
}

size_t SparseCodec::Encode(std::span<const float> values, std::span<float> residual,
                           const EncodeContext& context, MutableByteView out) const {
  const auto n = static_cast<uint32_t>(values.size());
  SYNCLINE_CHECK(n <= kTileElements && out.size() >= MaxEncodedBytes(n));
  SYNCLINE_CHECK(residual.empty() || residual.size() == n);
  const Selection selection = Select(selector(), values, context);
  const std::span<const uint16_t> positions = selection.indices.view();
  const IndexCoding coding = CodingOf(selector(), selection, n);
  const SparseHeader header = {
      .nonzeros = static_cast<uint32_t>(positions.size()),
      .values = static_cast<uint16_t>(options_.values->id()),
      .coder = static_cast<uint8_t>(coding.coder),
      .rice_bits = coding.rice_bits,
      .index_bytes = coding.bytes,
  };
  std::memcpy(out.data(), &header, sizeof(header));
  const MutableByteView indices = out.subspan(sizeof(header), coding.bytes);
  if (coding.coder == IndexCoder::kSeed) {
    std::memcpy(indices.data(), &selection.seed, sizeof(selection.seed));
  } else {
    WriteIndices(positions, coding, indices);
  }

  std::vector<float> sent = Gather(values, selection);
  EncodeContext of_values = context;
  of_values.memory = {};  // it belongs to the selector
  const MutableByteView room = out.subspan(sizeof(header) + coding.bytes);
  const size_t value_bytes = options_.values->Encode(sent, {}, of_values, room);
  if (!residual.empty()) {
    if (residual.data() != values.data()) std::ranges::copy(values, residual.begin());
    SYNCLINE_CHECK(options_.values->Decode(room.first(value_bytes), sent).ok());
    for (size_t j = 0; j < sent.size(); ++j) residual[positions[j]] -= sent[j];
  }
  return sizeof(header) + coding.bytes + value_bytes;
}

const Codec* SparseCodec::FindValues(uint16_t id) const {
  const auto has_id = [id](const std::shared_ptr<const Codec>& codec) {
    return static_cast<uint16_t>(codec->id()) == id;
  };
  if (has_id(options_.values)) return options_.values.get();
  const auto found = std::ranges::find_if(options_.also_decoded, has_id);
  return found == options_.also_decoded.end() ? nullptr : found->get();
}

absl::StatusOr<Sent> SparseCodec::Parse(ByteView bytes, uint32_t elements) const {
  SYNCLINE_ASSIGN_OR_RETURN(Listed listed, ReadListed(bytes, elements));
  Sent sent{.positions = std::move(listed.positions),
            .codec = FindValues(listed.header.values),
            .bytes = listed.values};
  if (sent.codec == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("values of a sparse tile have codec ",
                                                   listed.header.values,
                                                   ", which is not allowed"));
  }
  SYNCLINE_RETURN_IF_ERROR(sent.codec->Validate(sent.bytes, listed.header.nonzeros));
  return sent;
}

absl::Status SparseCodec::DecodeAdd(ByteView bytes, float weight,
                                    std::span<float> accumulator) const {
  SYNCLINE_ASSIGN_OR_RETURN(const Sent sent,
                            Parse(bytes, static_cast<uint32_t>(accumulator.size())));
  std::vector<float> values(sent.positions.count());
  SYNCLINE_RETURN_IF_ERROR(sent.codec->Decode(sent.bytes, values));
  const std::span<const uint16_t> positions = sent.positions.view();
  for (size_t j = 0; j < values.size(); ++j) {
    accumulator[positions[j]] += weight * values[j];
  }
  return absl::OkStatus();
}

absl::Status SparseCodec::Decode(ByteView bytes, std::span<float> out) const {
  SYNCLINE_ASSIGN_OR_RETURN(const Sent sent,
                            Parse(bytes, static_cast<uint32_t>(out.size())));
  std::vector<float> values(sent.positions.count());
  SYNCLINE_RETURN_IF_ERROR(sent.codec->Decode(sent.bytes, values));
  std::ranges::fill(out, 0.0f);
  const std::span<const uint16_t> positions = sent.positions.view();
  for (size_t j = 0; j < values.size(); ++j) out[positions[j]] = values[j];
  return absl::OkStatus();
}

uint32_t SparseCodec::Nonzeros(ByteView bytes, uint32_t elements) const {
  SparseHeader header;
  if (bytes.size() < sizeof(header)) return 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return std::min(header.nonzeros, elements);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeSparseCodec(SparseOptions options) {
  SYNCLINE_RETURN_IF_ERROR(CheckSelector(options.selector));
  const auto unusable = [](const std::shared_ptr<const Codec>& codec) {
    return codec == nullptr || codec->id() == CodecId::kSparse;
  };
  if (unusable(options.values) || std::ranges::any_of(options.also_decoded, unusable)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparse codec '", options.name, "': values need a dense codec"));
  }
  return std::make_unique<SparseCodec>(std::move(options));
}

namespace {

size_t BytesWith(const IndexCoding& coding, const Listed& listed) {
  return sizeof(SparseHeader) + coding.bytes + listed.values.size();
}

// REQUIRES: `out` has BytesWith(coding, listed) bytes.
void WriteListed(const Listed& listed, const IndexCoding& coding, MutableByteView out) {
  SparseHeader header = listed.header;
  header.coder = static_cast<uint8_t>(coding.coder);
  header.rice_bits = coding.rice_bits;
  header.index_bytes = coding.bytes;
  std::memcpy(out.data(), &header, sizeof(header));
  WriteIndices(listed.positions.view(), coding,
               out.subspan(sizeof(header), coding.bytes));
  std::ranges::copy(listed.values, out.begin() + sizeof(header) + coding.bytes);
}

}  // namespace

std::optional<ByteView> WithPlainPositions(ByteView bytes, uint32_t elements,
                                           std::vector<std::byte>& memory) {
  SparseHeader header;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const auto values = static_cast<CodecId>(header.values);
  if (values != CodecId::kFp32 && values != CodecId::kBf16) return std::nullopt;
  switch (static_cast<IndexCoder>(header.coder)) {
    case IndexCoder::kU16:
    case IndexCoder::kEvery:
      return bytes;
    case IndexCoder::kBitmap:
    case IndexCoder::kRice:
      break;
    case IndexCoder::kSeed:
    case IndexCoder::kBlocks:
      return std::nullopt;
  }
  const absl::StatusOr<Listed> listed = ReadListed(bytes, elements);
  if (!listed.ok()) return std::nullopt;
  const IndexCoding plain = {
      .coder = IndexCoder::kU16,
      .bytes = static_cast<uint32_t>(header.nonzeros * sizeof(uint16_t))};
  memory.resize(BytesWith(plain, *listed));
  WriteListed(*listed, plain, memory);
  return memory;
}

absl::StatusOr<size_t> WithSmallestPositions(ByteView bytes, uint32_t elements,
                                             MutableByteView out) {
  SYNCLINE_ASSIGN_OR_RETURN(const Listed listed, ReadListed(bytes, elements));
  const IndexCoding coding = ChooseIndexCoding(listed.positions.view(), elements);
  const size_t size = BytesWith(coding, listed);
  if (size > out.size()) {
    return absl::InvalidArgumentError("longer than the codec's encodings");
  }
  WriteListed(listed, coding, out);
  return size;
}

}  // namespace syncline
