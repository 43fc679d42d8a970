#include "comm/codec/twobit/twobit.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/codec/block_scales.h"
#include "comm/codec/quantizer_codec.h"
#include "comm/codec/wire_values.h"

namespace syncline {
namespace {

constexpr size_t kBins = 4;
constexpr size_t kHeaderBytes = 4;
constexpr size_t kCodesInByte = 4;
constexpr double kLarge = 1.25;  // times the mean magnitude; see twobit.h
constexpr TwoBitOptions kDefaults = {};

// Number of elements that are decoded at once. It divides every block but the last.
constexpr size_t kStrip = 256;

// Sums in double and in order, which gives the same bits on any CPU and cannot overflow.
SYNCLINE_KERNEL double LeastLarge(const float* values, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(__builtin_fabsf(values[i]));
  return kLarge * (sum / static_cast<double>(n));
}

[[gnu::always_inline]] inline uint32_t BinOf(float value, double least_large) {
  const uint32_t negative = value < 0 ? 1 : 0;
  const uint32_t large =
      static_cast<double>(__builtin_fabsf(value)) > least_large ? 2 : 0;
  return negative | large;
}

SYNCLINE_KERNEL void FindMeans(const float* values, size_t n, double least_large,
                               float* means) {
  double sums[kBins] = {};
  size_t counts[kBins] = {};
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bin = BinOf(values[i], least_large);
    sums[bin] += static_cast<double>(values[i]);
    ++counts[bin];
  }
  for (size_t bin = 0; bin < kBins; ++bin) {
    means[bin] = counts[bin] == 0
                     ? 0.0f
                     : static_cast<float>(sums[bin] / static_cast<double>(counts[bin]));
  }
}

// `codes` begins with a whole byte because blocks are multiples of four.
SYNCLINE_KERNEL void WriteCodes(const float* values, size_t n, double least_large,
                                std::byte* codes) {
  for (size_t i = 0; i < n; i += kCodesInByte) {
    const size_t count = n - i < kCodesInByte ? n - i : kCodesInByte;
    uint32_t byte = 0;
    for (size_t j = 0; j < count; ++j) {
      byte |= BinOf(values[i + j], least_large) << (2 * j);
    }
    codes[i / kCodesInByte] = static_cast<std::byte>(byte);
  }
}

struct TwoBitFormat {
  static constexpr CodecId kId = CodecId::kTwoBit;
  static constexpr size_t kStrip = syncline::kStrip;
  using Options = TwoBitOptions;
  struct Checked {
    const std::byte* means = nullptr;
    const std::byte* codes = nullptr;
    uint32_t block_log2 = kMaxBlockLog2;
  };

  static size_t CodesOffset(uint32_t block_log2, size_t elements) {
    const size_t block = size_t{1} << block_log2;
    return kHeaderBytes + kBins * sizeof(float) * ((elements + block - 1) >> block_log2);
  }
  static size_t BytesFor(uint32_t block_log2, size_t elements) {
    return CodesOffset(block_log2, elements) +
           (elements + kCodesInByte - 1) / kCodesInByte;
  }
  static size_t BytesOf(const Options& options, size_t elements) {
    return BytesFor(options.block_log2, elements);
  }

  static absl::StatusOr<Checked> Check(ByteView bytes, size_t elements) {
    uint32_t block_log2 = 0;
    if (bytes.size() < kHeaderBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("encoded tile of ", bytes.size(), " bytes has no header"));
    }
    std::memcpy(&block_log2, bytes.data(), sizeof(block_log2));
    if (!IsBlockLog2(block_log2)) {
      return absl::InvalidArgumentError(
          absl::StrCat("encoded tile has blocks of 2^", block_log2, " elements"));
    }
    if (bytes.size() != BytesFor(block_log2, elements)) {
      return absl::InvalidArgumentError(
          absl::StrCat("encoded tile has ", bytes.size(), " bytes, but ", elements,
                       " elements need ", BytesFor(block_log2, elements)));
    }
    const size_t offset = CodesOffset(block_log2, elements);
    const Checked checked = {.means = bytes.data() + kHeaderBytes,
                             .codes = bytes.data() + offset,
                             .block_log2 = block_log2};
    const size_t means = (offset - kHeaderBytes) / sizeof(float);
    for (size_t i = 0; i < means; ++i) {
      if (std::isfinite(AsFloats(checked.means)[i])) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("encoded tile has the mean ", float{AsFloats(checked.means)[i]},
                       " for bin ", i % kBins, " of block ", i / kBins));
    }
    const size_t used = elements % kCodesInByte * 2;
    if (used != 0 && std::to_integer<uint32_t>(bytes.back()) >> used != 0) {
      return absl::InvalidArgumentError("encoded tile has bits beyond its last element");
    }
    return checked;
  }

  static std::string NameOf(const Options& options) {
    if (options.block_log2 == kDefaults.block_log2) return "twobit";
    return absl::StrCat("twobit:block=", uint32_t{1} << options.block_log2);
  }

  // For a bin of n values of one sign, the mean keeps |x|_1^2 / n of |x|_2^2, and
  // |x|_1 >= |x|_2.
  static CodecTraits TraitsOf(const Options& options) {
    return {.contraction = 1 / static_cast<double>(uint32_t{1} << options.block_log2)};
  }

  SYNCLINE_KERNEL void EncodeTile(QuantizerTile tile, Options options,
                                  EncodeContext /*context*/) {
    const uint32_t header = options.block_log2;
    __builtin_memcpy(tile.out, &header, sizeof(header));
    std::byte* means = tile.out + kHeaderBytes;
    std::byte* codes = tile.out + CodesOffset(options.block_log2, tile.elements);
    const size_t block_elements = size_t{1} << options.block_log2;
    for (size_t first = 0; first < tile.elements; first += block_elements) {
      const size_t rest = tile.elements - first;
      const size_t n = rest < block_elements ? rest : block_elements;
      const float* values = tile.values + first;
      const double least_large = LeastLarge(values, n);
      float book[kBins];
      FindMeans(values, n, least_large, book);
      __builtin_memcpy(means, book, sizeof(book));
      means += sizeof(book);
      WriteCodes(values, n, least_large, codes + first / kCodesInByte);
      if (tile.residual == nullptr) continue;
      float* residual = tile.residual + first;
      for (size_t i = 0; i < n; ++i) {
        // `values` may be the residual's memory, so the value is read first.
        const float value = values[i];
        residual[i] = value - book[BinOf(value, least_large)];
      }
    }
  }

  template <typename Into>
  SYNCLINE_KERNEL void DecodeStrip(const Checked& encoding, Into into,
                                   QuantizerStrip strip) {
    const size_t block = strip.first >> encoding.block_log2;
    float book[kBins];
    for (size_t bin = 0; bin < kBins; ++bin) {
      book[bin] = into.Weighted(AsFloats(encoding.means)[block * kBins + bin]);
    }
    const std::byte* codes = encoding.codes + strip.first / kCodesInByte;
    for (size_t i = 0; i < strip.n; ++i) {
      const auto byte = static_cast<uint32_t>(codes[i / kCodesInByte]);
      Into::To(strip.out[i], book[byte >> (i % kCodesInByte * 2) & (kBins - 1)]);
    }
  }
};

}  // namespace

std::unique_ptr<Codec> MakeTwoBitCodec(const TwoBitOptions& options) {
  SYNCLINE_CHECK(IsBlockLog2(options.block_log2));
  return std::make_unique<QuantizerCodec<TwoBitFormat>>(options);
}

}  // namespace syncline
