#include "comm/codec/lowrank/lowrank.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/dtype.h"
#include "comm/base/isa.h"
#include "comm/base/limits.h"
#include "comm/base/random.h"
#include "comm/base/status.h"
#include "comm/codec/lowrank/tile_matrix.h"
#include "comm/codec/max_magnitude.h"
#include "comm/codec/wire_values.h"

namespace syncline {
namespace {

struct LowRankHeader {
  uint32_t columns = 0;
  uint32_t phase = 0;
  uint16_t rank = 0;
  uint8_t number_bytes = 0;  // FactorType
  uint8_t reserved = 0;
};
static_assert(sizeof(LowRankHeader) == 12);

TileShape ShapeOf(const LowRankHeader& header, size_t elements) {
  return {.elements = elements, .columns = header.columns, .phase = header.phase};
}

// Tiles whose largest value is outside this range are encoded as zeros, because sums of
// products might be infinite or denormal. All of it stays in the residual.
constexpr float kTooLarge = 0x1p96f;
constexpr float kTooSmall = 0x1p-96f;

// A checked encoding.
struct LowRankTile {
  TileShape shape = {};
  uint32_t rank = 0;
  ByteView numbers = {};
};

class LowRankCodec final : public Codec {
 public:
  explicit LowRankCodec(const LowRankOptions& options);

  CodecId id() const override { return CodecId::kLowRank; }
  std::string_view name() const override { return name_; }
  CodecTraits traits() const override;
  size_t MaxEncodedBytes(uint32_t elements) const override;
  size_t MemoryValues(uint32_t /*elements*/) const override {
    return size_t{options_.rank} * options_.columns;
  }
  absl::StatusOr<std::unique_ptr<Codec>> ForMatrix(uint64_t rows,
                                                   uint64_t columns) const override;
  size_t Encode(std::span<const float> values, std::span<float> residual,
                const EncodeContext& context, MutableByteView out) const override;
  absl::Status DecodeAdd(ByteView bytes, float weight,
                         std::span<float> accumulator) const override {
    return DecodeInto(bytes, AddWeighted{.weight = weight}, accumulator);
  }
  absl::Status Decode(ByteView bytes, std::span<float> out) const override {
    return DecodeInto(bytes, Assign{}, out);
  }
  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    return Parse(bytes, elements).status();
  }

 private:
  size_t number_bytes() const { return static_cast<size_t>(options_.factors); }
  // Returns the rank that a small tile can have; 0 if the values themselves are shorter.
  uint32_t RankOf(const TileShape& shape) const;
  size_t NumbersOf(const TileShape& shape, uint32_t rank) const;
  absl::StatusOr<LowRankTile> Parse(ByteView bytes, size_t elements) const;
  // Convert FP32 to the wire's numbers and back. They return the bytes after those
  // written or read.
  MutableByteView Write(std::span<const float> numbers, MutableByteView out) const;
  ByteView Read(ByteView bytes, std::span<float> numbers) const;
  MutableByteView WriteFactors(std::span<const float> values,
                               const EncodeContext& context, const LowRankHeader& header,
                               MutableByteView out) const;
  template <typename Into>
  absl::Status DecodeInto(ByteView bytes, Into into, std::span<float> out) const;

  const LowRankOptions options_;
  const std::string name_;
};

LowRankCodec::LowRankCodec(const LowRankOptions& options)
    : options_(options),
      name_(absl::StrCat("lowrank:rank=", options.rank, ",columns=", options.columns,
                         options.factors == FactorType::kFp32 ? ",factors=fp32" : "")) {
  SYNCLINE_CHECK(options.rank >= 1 && options.rank <= kMaxRank && options.columns >= 1);
}

// With a unit vector q, P spans M q. So |M|^2 falls by at least (q^T M^T M q)^2 /
// |M q|^2. That is |M q|^2 for the largest column, where q is a unit vector of the basis.
// It is at least the largest row's square if q is that row. Rounded factors turn the span
// a little, and the coordinates in it are not exact.
CodecTraits LowRankCodec::traits() const {
  const double rounding = options_.factors == FactorType::kBf16 ? 0x1p-8 : 0x1p-18;
  const double rows = (kTileElements + 2.0 * options_.columns - 2) / options_.columns;
  const double share =
      std::sqrt(1 / std::min<double>(std::floor(rows), options_.columns));
  const double kept = share - rounding;
  return {.contraction = std::max(0.0, kept * std::abs(kept) - rounding * rounding),
          .largest = std::nextafter(kTooLarge, 0.0f),
          .finite_only = true,
          .strip = kTileElements};
}

uint32_t LowRankCodec::RankOf(const TileShape& shape) const {
  const size_t rank = std::min({size_t{options_.rank}, shape.rows(), shape.columns});
  return rank * (shape.rows() + shape.columns) < shape.elements
             ? static_cast<uint32_t>(rank)
             : 0;
}

size_t LowRankCodec::NumbersOf(const TileShape& shape, uint32_t rank) const {
  return rank == 0 ? shape.elements : rank * (shape.rows() + shape.columns);
}

size_t LowRankCodec::MaxEncodedBytes(uint32_t elements) const {
  // The phase with the most rows has the longest factors, unless the values are shorter.
  const TileShape longest = {
      .elements = elements, .columns = options_.columns, .phase = options_.columns - 1};
  const size_t numbers =
      std::min<size_t>(elements, options_.rank * (longest.rows() + longest.columns));
  return sizeof(LowRankHeader) + numbers * number_bytes();
}

absl::StatusOr<std::unique_ptr<Codec>> LowRankCodec::ForMatrix(uint64_t rows,
                                                               uint64_t columns) const {
  if (rows <= 1 || columns <= 1) {
    return absl::InvalidArgumentError("needs a matrix, but this is a vector");
  }
  const uint64_t elements = std::min<uint64_t>(rows * columns, kTileElements);
  const uint64_t tile_rows = std::min(rows, (elements + columns - 1) / columns);
  const uint64_t numbers = options_.rank * (tile_rows + columns);
  if (columns > kTileElements || 2 * numbers > elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "must send at most half of the numbers, but with rank ", options_.rank, " sends ",
        numbers, " for a tile of ", elements, " (", tile_rows, " rows of ", columns,
        "); choose a lower rank, more min_elements or another codec"));
  }
  LowRankOptions options = options_;
  options.columns = static_cast<uint32_t>(columns);
  return MakeLowRankCodec(options);
}

MutableByteView LowRankCodec::Write(std::span<const float> numbers,
                                    MutableByteView out) const {
  if (numbers.empty()) return out;
  if (options_.factors == FactorType::kFp32) {
    std::memcpy(out.data(), numbers.data(), numbers.size_bytes());
    return out.subspan(numbers.size_bytes());
  }
  constexpr float kLargestBf16 = 0x1.fep127f;
  WireU16* narrow = AsU16s(out.data());
  for (size_t i = 0; i < numbers.size(); ++i) {
    narrow[i] = Bf16FromFloat(std::clamp(numbers[i], -kLargestBf16, kLargestBf16));
  }
  return out.subspan(numbers.size() * sizeof(uint16_t));
}

ByteView LowRankCodec::Read(ByteView bytes, std::span<float> numbers) const {
  if (numbers.empty()) return bytes;
  if (options_.factors == FactorType::kFp32) {
    std::memcpy(numbers.data(), bytes.data(), numbers.size_bytes());
    return bytes.subspan(numbers.size_bytes());
  }
  const WireU16* narrow = AsU16s(bytes.data());
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = FloatFromBf16(narrow[i]);
  return bytes.subspan(numbers.size() * sizeof(uint16_t));
}

// ---- Encoding ----

SYNCLINE_KERNEL void FindMaxMagnitude(size_t n, const float* values, float* max) {
  *max = MaxMagnitude(values, n);
}

// Returns the power of two that scales the largest value to [0.5, 1); 0: the tile is
// zeros.
float ScaleOf(std::span<const float> values) {
  float max = 0;
  Kernel<FindMaxMagnitude>::Run(values.size(), values.data(), &max);
  if (max < kTooSmall || max >= kTooLarge) return 0;
  int exponent = 0;
  std::frexp(max, &exponent);
  return std::ldexp(1.0f, -exponent);
}

// A tile to factor. Its values times `scale` are at most 1.
struct Source {
  TileShape shape = {};
  std::span<const float> values = {};
  float scale = 1;
};

// Writes the tile's largest row, or the unit vector of its largest column if there are
// fewer columns than rows.
void StartFromLargest(const Source& tile, std::span<float> column) {
  std::vector<float> of_rows(tile.shape.rows());
  std::vector<float> of_columns(tile.shape.columns);
  Kernel<SquaredNorms>::Run(tile.shape, tile.values.data(), tile.scale, of_rows.data(),
                            of_columns.data());
  if (of_columns.size() < of_rows.size()) {
    column[std::ranges::max_element(of_columns) - of_columns.begin()] = 1;
    return;
  }
  const RowPiece piece =
      PieceOf(tile.shape, std::ranges::max_element(of_rows) - of_rows.begin());
  for (size_t i = 0; i < piece.n; ++i) {
    column[piece.column + i] = tile.values[piece.first + i] * tile.scale;
  }
}

// Returns the columns to start from: those of the last step, or random ones if there are
// none.
std::vector<float> StartColumns(const Source& tile, uint32_t rank,
                                const EncodeContext& context) {
  const size_t columns = tile.shape.columns;
  std::vector<float> q(rank * columns);
  const RandomBits random(context.seed, context.step, context.tensor,
                          context.first_element);
  for (uint32_t j = 0; j + 1 < rank; ++j) {
    const std::span<float> column = std::span(q).subspan(j * columns, columns);
    if (!context.memory.empty()) {
      std::ranges::copy(context.memory.subspan(j * columns, columns), column.begin());
      if (std::ranges::any_of(column, [](float value) { return value != 0; })) continue;
    }
    for (size_t i = 0; i < columns; ++i) {
      const uint32_t bits = random.At(static_cast<uint32_t>(j * columns + i));
      column[i] = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
    }
  }
  StartFromLargest(tile, std::span(q).subspan((rank - 1) * columns, columns));
  return q;
}

MutableByteView LowRankCodec::WriteFactors(std::span<const float> values,
                                           const EncodeContext& context,
                                           const LowRankHeader& header,
                                           MutableByteView out) const {
  const Source tile = {.shape = ShapeOf(header, values.size()),
                       .values = values,
                       .scale = ScaleOf(values)};
  const size_t rows = tile.shape.rows();
  std::vector<float> p(header.rank * rows);
  std::vector<float> q(header.rank * tile.shape.columns);
  if (tile.scale > 0) {
    q = StartColumns(tile, header.rank, context);
    std::vector<double> basis(p.size());
    Kernel<TimesColumns>::Run(tile.shape, values.data(), q.data(), header.rank,
                              basis.data());
    Kernel<Orthonormalize>::Run(rows, header.rank, basis.data());
    std::ranges::transform(basis, p.begin(),
                           [](double value) { return static_cast<float>(value); });
    Write(p, out);
    // Q is computed from the P that the receiver will have.
    Read(out, p);
    Kernel<TimesRows>::Run(tile.shape, values.data(), p.data(), header.rank, q.data());
    if (!context.memory.empty()) {
      std::ranges::transform(q, context.memory.begin(),
                             [&](float value) { return value * tile.scale; });
    }
  }
  return Write(q, Write(p, out));
}

size_t LowRankCodec::Encode(std::span<const float> values, std::span<float> residual,
                            const EncodeContext& context, MutableByteView out) const {
  const auto n = static_cast<uint32_t>(values.size());
  SYNCLINE_CHECK(n <= kTileElements && out.size() >= MaxEncodedBytes(n));
  SYNCLINE_CHECK(context.memory.empty() || context.memory.size() == MemoryValues(n));
  const uint64_t phase = context.first_element % options_.columns;
  LowRankHeader header = {.columns = options_.columns,
                          .phase = static_cast<uint32_t>(phase),
                          .number_bytes = static_cast<uint8_t>(number_bytes())};
  header.rank = static_cast<uint16_t>(RankOf(ShapeOf(header, n)));
  const MutableByteView numbers = out.subspan(sizeof(header));
  const MutableByteView rest = header.rank == 0
                                   ? Write(values, numbers)
                                   : WriteFactors(values, context, header, numbers);
  std::memcpy(out.data(), &header, sizeof(header));
  const size_t bytes = out.size() - rest.size();
  if (!residual.empty()) {
    if (residual.data() != values.data()) std::ranges::copy(values, residual.begin());
    SYNCLINE_CHECK(DecodeInto(out.first(bytes), SubtractFrom{}, residual).ok());
  }
  return bytes;
}

// ---- Decoding ----

absl::StatusOr<LowRankTile> LowRankCodec::Parse(ByteView bytes, size_t elements) const {
  LowRankHeader header;
  if (bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("low-rank tile of ", bytes.size(), " bytes has no header"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.columns != options_.columns || header.phase >= header.columns ||
      header.number_bytes != number_bytes() || header.reserved != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "low-rank tile claims ", header.columns, " columns, the first element in ",
        header.phase, " and ", header.number_bytes, " bytes for a number; expected ",
        options_.columns, " columns and ", number_bytes(), " bytes"));
  }
  const LowRankTile tile = {.shape = ShapeOf(header, elements),
                            .rank = header.rank,
                            .numbers = bytes.subspan(sizeof(header))};
  if (tile.rank != RankOf(tile.shape)) {
    return absl::InvalidArgumentError(absl::StrCat("low-rank tile of ", elements,
                                                   " elements has rank ", tile.rank,
                                                   ", expected ", RankOf(tile.shape)));
  }
  const size_t numbers = NumbersOf(tile.shape, tile.rank);
  if (tile.numbers.size() != numbers * number_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("low-rank tile has ", tile.numbers.size(), " bytes of factors, but ",
                     elements, " elements need ", numbers * number_bytes()));
  }
  std::vector<float> read(numbers);
  Read(tile.numbers, read);
  if (!std::ranges::all_of(read, [](float value) { return std::isfinite(value); })) {
    return absl::InvalidArgumentError("low-rank tile has factors that are not finite");
  }
  return tile;
}

template <typename Into>
absl::Status LowRankCodec::DecodeInto(ByteView bytes, Into into,
                                      std::span<float> out) const {
  SYNCLINE_ASSIGN_OR_RETURN(const LowRankTile tile, Parse(bytes, out.size()));
  std::vector<float> numbers(NumbersOf(tile.shape, tile.rank));
  Read(tile.numbers, numbers);
  if (tile.rank == 0) {
    for (size_t i = 0; i < out.size(); ++i) {
      Into::To(out[i], into.Weighted(numbers[i]));
    }
    return absl::OkStatus();
  }
  Kernel<MultiplyFactors<Into>>::Run(tile.shape,
                                     {.p = numbers.data(),
                                      .q = numbers.data() + tile.rank * tile.shape.rows(),
                                      .rank = tile.rank},
                                     into, out.data());
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Codec> MakeLowRankCodec(const LowRankOptions& options) {
  return std::make_unique<LowRankCodec>(options);
}

}  // namespace syncline
