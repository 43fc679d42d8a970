#include "comm/codec/dct/dct.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/codec/dct/pieces.h"
#include "comm/codec/dct/transform.h"
#include "comm/codec/decoded_into.h"
#include "comm/codec/max_magnitude.h"

namespace syncline {
namespace {

static_assert(kDctSide == kMaxDctSize && kDctSide == kDctRow);

struct DctHeader {
  uint32_t columns = 0;
  uint32_t phase = 0;
  uint16_t inner = 0;  // CodecId
  uint8_t side_log2 = 6;
  uint8_t reserved = 0;
};
static_assert(sizeof(DctHeader) == 12);

// Below it, sums of 4,096 products are finite.
constexpr float kTooLarge = 0x1p96f;

SYNCLINE_KERNEL void FindMaxMagnitude(size_t n, const float* values, float* max) {
  *max = MaxMagnitude(values, n);
}

// ---- One piece ----

// Rows and columns beyond those of a piece are zero, up to whole lanes.
struct Square {
  alignas(64) float rows[kDctSide * kDctRow];
};

[[gnu::always_inline]] inline size_t WholeLanes(size_t n) {
  return (n + kDctLanes - 1) / kDctLanes * kDctLanes;
}

SYNCLINE_KERNEL void ClearEnds(size_t height, size_t width, Square& square) {
  for (size_t i = 0; i < WholeLanes(height); ++i) {
    const size_t first = i < height ? width : 0;
    for (size_t j = first; j < WholeLanes(width); ++j) square.rows[i * kDctRow + j] = 0;
  }
}

// A square, and the rows in which the rows of the piece lie.
template <typename Values>
struct Ordered {
  Values& square;
  const DctRotations& order;
};

// Turns `height` rows of `width` columns into `width` rows, in squares of 16 x 16, whose
// loops the compiler unrolls.
SYNCLINE_KERNEL void Turn(size_t height, size_t width, Ordered<const Square> from,
                          Ordered<Square> to) {
  constexpr size_t kSide = kDctLanes;
  for (size_t row = 0; row < height; row += kSide) {
    for (size_t column = 0; column < width; column += kSide) {
      float turned[kSide * kSide];
      for (size_t i = 0; i < kSide; ++i) {
        const float* const x =
            from.square.rows + from.order.RowOf(row + i) * kDctRow + column;
        for (size_t j = 0; j < kSide; ++j) turned[j * kSide + i] = x[j];
      }
      for (size_t j = 0; j < kSide; ++j) {
        float* const y = to.square.rows + to.order.RowOf(column + j) * kDctRow + row;
        for (size_t i = 0; i < kSide; ++i) y[i] = turned[j * kSide + i];
      }
    }
  }
}

// Writes the coefficients of a piece of `tile`, column by column.
SYNCLINE_KERNEL void TransformPiece(DctPiece piece, const float* tile,
                                    float* coefficients) {
  const size_t height = piece.height;
  const size_t width = piece.width;
  const DctRotations& down = DctRotationsOf(piece.transforms_columns ? height : 1);
  const DctRotations& along = DctRotationsOf(width);
  Square square;
  for (size_t i = 0; i < height; ++i) {
    const float* const from = tile + piece.first + i * piece.stride;
    for (size_t j = 0; j < width; ++j) square.rows[i * kDctRow + j] = from[j];
  }
  ClearEnds(height, width, square);
  ForwardDct(down, WholeLanes(width), square.rows);
  Square turned;
  Turn(height, width, {square, down}, {turned, DctRotationsOf(1)});
  ForwardDct(along, WholeLanes(height), turned.rows);
  for (size_t j = 0; j < width; ++j) {
    const float* const from = turned.rows + along.RowOf(j) * kDctRow;
    for (size_t i = 0; i < height; ++i) coefficients[j * height + i] = from[i];
  }
}

// The inverse.
SYNCLINE_KERNEL void RestorePiece(DctPiece piece, const float* coefficients,
                                  float* tile) {
  const size_t height = piece.height;
  const size_t width = piece.width;
  const DctRotations& down = DctRotationsOf(piece.transforms_columns ? height : 1);
  const DctRotations& along = DctRotationsOf(width);
  Square turned;
  for (size_t j = 0; j < width; ++j) {
    float* const to = turned.rows + along.RowOf(j) * kDctRow;
    for (size_t i = 0; i < height; ++i) to[i] = coefficients[j * height + i];
  }
  ClearEnds(width, height, turned);
  BackwardDct(along, WholeLanes(height), turned.rows);
  Square square;
  Turn(width, height, {turned, DctRotationsOf(1)}, {square, down});
  BackwardDct(down, WholeLanes(width), square.rows);
  for (size_t i = 0; i < height; ++i) {
    float* const to = tile + piece.first + i * piece.stride;
    for (size_t j = 0; j < width; ++j) to[j] = square.rows[i * kDctRow + j];
  }
}

template <typename Into>
SYNCLINE_KERNEL void PutInto(size_t n, const float* decoded, Into into, float* out) {
  for (size_t i = 0; i < n; ++i) Into::To(out[i], into.Weighted(decoded[i]));
}

// ---- A tile ----

// REQUIRES: `out` has as many elements as the tile, elsewhere.
void Transform(const DctTile& shape, const float* tile, float* out) {
  VisitPieces(shape, [&](const DctPiece& piece) {
    Kernel<TransformPiece>::Run(piece, tile, out);
    out += piece.height * piece.width;
  });
}

void Restore(const DctTile& shape, const float* coefficients, float* tile) {
  VisitPieces(shape, [&](const DctPiece& piece) {
    Kernel<RestorePiece>::Run(piece, coefficients, tile);
    coefficients += piece.height * piece.width;
  });
}

// A checked header, and the inner encoding.
struct DctEncoding {
  DctTile shape = {};
  ByteView inner = {};
};

class DctCodec final : public Codec, private CodecBasis {
 public:
  explicit DctCodec(DctOptions options) : options_(std::move(options)) {
    SYNCLINE_CHECK(options_.inner != nullptr && options_.columns >= 1);
    SYNCLINE_CHECK(inner().traits().finite_only && inner().MemoryValues(1) == 0);
  }

  CodecId id() const override { return CodecId::kDct; }
  std::string_view name() const override { return options_.name; }
  CodecTraits traits() const override;
  size_t MaxEncodedBytes(uint32_t elements) const override {
    return sizeof(DctHeader) + inner().MaxEncodedBytes(elements);
  }
  absl::StatusOr<std::unique_ptr<Codec>> ForMatrix(uint64_t rows,
                                                   uint64_t columns) const override;
  const CodecBasis* basis() const override { return this; }

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
    SYNCLINE_ASSIGN_OR_RETURN(const DctEncoding encoding, Parse(bytes, elements));
    return inner().Validate(encoding.inner, elements);
  }
  uint32_t Nonzeros(ByteView bytes, uint32_t elements) const override {
    if (bytes.size() < sizeof(DctHeader)) return 0;
    return inner().Nonzeros(bytes.subspan(sizeof(DctHeader)), elements);
  }

 private:
  const Codec& inner() const { return *options_.inner; }
  DctTile ShapeAt(uint64_t first_element, size_t elements) const {
    return {.elements = elements,
            .columns = options_.columns,
            .phase = first_element % options_.columns};
  }
  absl::StatusOr<DctEncoding> Parse(ByteView bytes, size_t elements) const;
  template <typename Into>
  absl::Status DecodeInto(ByteView bytes, Into into, std::span<float> out) const;

  // CodecBasis
  void ToCoefficients(uint64_t first_element, std::span<float> tile) const override;
  void FromCoefficients(uint64_t first_element, std::span<float> tile) const override;
  absl::Status DecodeCoefficients(ByteView bytes, uint64_t first_element,
                                  std::span<float> out) const override;

  const DctOptions options_;
};

// The transform keeps lengths, up to its roundings: at most 4 in each of the 8 layers of
// rotations of 2 directions, there and back, of 2^-24 of a length each.
CodecTraits DctCodec::traits() const {
  constexpr double kRounding = 4 * 8 * 2 * 2 * 0x1p-24;
  CodecTraits traits = inner().traits();
  const auto share = [](double squared) {
    return std::pow(std::sqrt(squared) + kRounding, 2);
  };
  if (traits.variance > 0) traits.variance = share(traits.variance);
  if (traits.contraction > 0) {
    traits.contraction = std::max(0.0, 1 - share(1 - traits.contraction));
  }
  // A coefficient is at most kDctSide times the largest value.
  traits.largest = std::min(traits.largest / kDctSide, std::nextafter(kTooLarge, 0.0f));
  traits.strip = kTileElements;
  return traits;
}

absl::StatusOr<std::unique_ptr<Codec>> DctCodec::ForMatrix(uint64_t /*rows*/,
                                                           uint64_t columns) const {
  DctOptions options = options_;
  // Vectors are one row. Tiles of rows that are longer than the field's largest number
  // are treated as if rows began elsewhere, which costs a little at one end.
  options.columns = static_cast<uint32_t>(
      columns <= 1 ? kTileElements : std::min<uint64_t>(columns, 1u << 31));
  return std::make_unique<DctCodec>(std::move(options));
}

size_t DctCodec::Encode(std::span<const float> values, std::span<float> residual,
                        const EncodeContext& context, MutableByteView out) const {
  const size_t n = values.size();
  SYNCLINE_CHECK(n <= kTileElements &&
                 out.size() >= MaxEncodedBytes(static_cast<uint32_t>(n)));
  const DctTile shape = ShapeAt(context.first_element, n);
  const DctHeader header = {.columns = options_.columns,
                            .phase = static_cast<uint32_t>(shape.phase),
                            .inner = static_cast<uint16_t>(inner().id())};
  std::memcpy(out.data(), &header, sizeof(header));
  out = out.subspan(sizeof(header));
  const auto scratch = std::make_unique_for_overwrite<float[]>(2 * n);
  const std::span<float> coefficients(scratch.get(), n);
  float max = 0;
  Kernel<FindMaxMagnitude>::Run(n, values.data(), &max);
  if (max < kTooLarge) {
    Transform(shape, values.data(), coefficients.data());
  } else {
    std::ranges::fill(coefficients, 0.0f);
  }
  const size_t bytes = inner().Encode(coefficients, {}, context, out);
  if (!residual.empty()) {
    const std::span<float> decoded(scratch.get() + n, n);
    SYNCLINE_CHECK(inner().Decode(out.first(bytes), coefficients).ok());
    Restore(shape, coefficients.data(), decoded.data());
    if (residual.data() != values.data()) std::ranges::copy(values, residual.begin());
    Kernel<PutInto<SubtractFrom>>::Run(n, decoded.data(), SubtractFrom{},
                                       residual.data());
  }
  return sizeof(header) + bytes;
}

absl::StatusOr<DctEncoding> DctCodec::Parse(ByteView bytes, size_t elements) const {
  DctHeader header;
  if (bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("transformed tile of ", bytes.size(), " bytes has no header"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  const DctHeader own = {.columns = options_.columns,
                         .phase = header.phase,
                         .inner = static_cast<uint16_t>(inner().id())};
  if (header.phase >= header.columns || std::memcmp(&header, &own, sizeof(own)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transformed tile claims column ", header.phase, " of ", header.columns,
        ", codec ", header.inner, " and pieces of 2^", header.side_log2, "; expected ",
        own.columns, " columns, codec ", own.inner, " and pieces of 2^", own.side_log2));
  }
  return DctEncoding{
      .shape = {.elements = elements, .columns = header.columns, .phase = header.phase},
      .inner = bytes.subspan(sizeof(header))};
}

template <typename Into>
absl::Status DctCodec::DecodeInto(ByteView bytes, Into into, std::span<float> out) const {
  const size_t n = out.size();
  SYNCLINE_ASSIGN_OR_RETURN(const DctEncoding encoding, Parse(bytes, n));
  const auto scratch = std::make_unique_for_overwrite<float[]>(2 * n);
  const std::span<float> coefficients(scratch.get(), n);
  SYNCLINE_RETURN_IF_ERROR(inner().Decode(encoding.inner, coefficients));
  float* const decoded = scratch.get() + n;
  Restore(encoding.shape, coefficients.data(), decoded);
  Kernel<PutInto<Into>>::Run(n, decoded, into, out.data());
  return absl::OkStatus();
}

void DctCodec::ToCoefficients(uint64_t first_element, std::span<float> tile) const {
  const std::vector<float> values(tile.begin(), tile.end());
  Transform(ShapeAt(first_element, tile.size()), values.data(), tile.data());
}

void DctCodec::FromCoefficients(uint64_t first_element, std::span<float> tile) const {
  const std::vector<float> coefficients(tile.begin(), tile.end());
  Restore(ShapeAt(first_element, tile.size()), coefficients.data(), tile.data());
}

absl::Status DctCodec::DecodeCoefficients(ByteView bytes, uint64_t first_element,
                                          std::span<float> out) const {
  SYNCLINE_ASSIGN_OR_RETURN(const DctEncoding encoding, Parse(bytes, out.size()));
  const size_t phase = first_element % options_.columns;
  if (encoding.shape.phase != phase) {
    return absl::InvalidArgumentError(absl::StrCat("transformed tile claims column ",
                                                   encoding.shape.phase,
                                                   ", but starts at column ", phase));
  }
  return inner().Decode(encoding.inner, out);
}

}  // namespace

std::unique_ptr<Codec> MakeDctCodec(DctOptions options) {
  return std::make_unique<DctCodec>(std::move(options));
}

}  // namespace syncline
