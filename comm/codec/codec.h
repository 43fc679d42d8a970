// A Codec turns one tile of FP32 values into bytes, and adds decoded bytes to an
// accumulator.
//
// Encode and DecodeAdd are the core of the interface. Workers encode gradients tile by
// tile. Servers add the contributions of all workers into one accumulator that stays in
// cache. The published view returns to the workers in the same way. The pass that encodes
// also computes the residual, which is what the encoding loses.
//
// Codecs can be composed (README.md): a quantizer encodes every value; a selector sends
// few values and encodes those with any quantizer; a memory (comm/compression/memory)
// decides which values are encoded. Users name a composition by a string
// (comm/compression/transfer.h).
//
// Thread safety: implementations are stateless and const; any number of threads may share
// one. A new codec needs a folder, a test that instantiates the contract suites
// (codec_contract.h for exact codecs, lossy_codec_contract.h for all), and a place where
// it is created (README.md).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/base/status.h"

namespace syncline {

// Ids are part of the wire format (docs/wire_format.md) and must never change.
enum class CodecId : uint16_t {
  kFp32 = 1,
  kBf16 = 2,
  kFp16 = 3,
  kBf16Stochastic = 4,
  kSign = 5,
  kInt8 = 6,
  kInt4 = 7,
  kInt2 = 8,
  kNatural = 9,
  kTwoBit = 10,
  kSparse = 16,
  kRotated = 17,
  kLowRank = 18,
  kDct = 19,
};

// Properties that a codec guarantees for tiles of finite values.
struct CodecTraits {
  // E[decoded] = value.
  bool unbiased = false;
  // Codecs that round at random: E|decoded - value|^2 <= variance * |value|^2. 0: not at
  // random.
  double variance = 0;
  // Other codecs: |decoded - value|^2 <= (1 - contraction) * |value|^2 for any tile. If
  // it is above 0, error feedback converges (Karimireddy et al. 2019, arXiv 1901.09847).
  // 0: no such bound.
  double contraction = 0;
  // The largest magnitude that decodes to a finite value, as far as `values` alone decide
  // it. Tiles with a larger one are sent in another codec (comm/compression/memory).
  float largest = std::numeric_limits<float>::max();
  // Whether NaN and infinity cannot be encoded. Tiles that hold one are also sent in
  // another codec.
  bool finite_only = false;
  // An encoding may be cut at multiples of this number of elements (dense.h), and
  // decoders work in strips of it. kTileElements: it cannot be cut.
  uint32_t strip = 1;
};

// Where and when values are encoded. Codecs that round at random hash it for their random
// bits (comm/base/random.h); others ignore it.
struct EncodeContext {
  uint64_t seed = 0;  // differs between senders whose errors should be independent
  uint64_t step = 0;
  uint32_t tensor = 0;
  uint64_t first_element = 0;  // position of values[0] in the tensor
  // Values that the caller keeps for this tile from step to step: Codec::MemoryValues of
  // them, zero at first. Empty: nothing is kept.
  std::span<float> memory = {};
  // The smallest magnitude that a selector over the whole tensor sends. 0: unknown; the
  // selector then looks at its tile alone.
  float threshold = 0;
};

// An encoding and its weight in a sum.
struct WeightedBytes {
  ByteView bytes = {};
  float weight = 1;
};

// Parameters of the kernels of comm/codec/cuda, so that a GPU encodes to the same bytes.
struct DeviceForm {
  uint32_t block_log2 = 0;     // kSign, kInt8: log2 of the elements that share a scale
  bool is_stochastic = false;  // kInt8: rounds at random
  double ratio = 0;            // kSparse: share of a tile's elements that is sent
  CodecId values = CodecId::kFp32;  // kSparse: codec of the values
};

// The basis of codecs that send a few coefficients of a tile instead of a few values
// (comm/codec/dct). Receivers that average over those who sent something do so coefficient
// by coefficient, and go back to values once.
class CodecBasis {
 public:
  virtual ~CodecBasis() = default;

  // Replace a tile that starts at element `first_element` of its tensor by its
  // coefficients, or coefficients by the tile. There are as many of one as of the other.
  virtual void ToCoefficients(uint64_t first_element, std::span<float> tile) const = 0;
  virtual void FromCoefficients(uint64_t first_element, std::span<float> tile) const = 0;

  // out[i] = the coefficient i of an encoding; 0 if it was not sent. Fails as
  // Codec::Decode does, and if the encoding is of a tile that starts elsewhere.
  virtual absl::Status DecodeCoefficients(ByteView bytes, uint64_t first_element,
                                          std::span<float> out) const = 0;
};

class Codec {
 public:
  virtual ~Codec() = default;

  virtual CodecId id() const = 0;
  // The name that users write in flags and job settings (comm/compression/transfer.h):
  // "bf16", "topk:ratio=0.01".
  virtual std::string_view name() const = 0;

  virtual CodecTraits traits() const = 0;

  // Returns an upper bound of the encoded size of `elements` values. It is the exact size
  // for codecs whose strip is 1.
  virtual size_t MaxEncodedBytes(uint32_t elements) const = 0;

  // Returns how many values the codec keeps for a tile from step to step
  // (EncodeContext::memory), such as a threshold or a basis.
  virtual size_t MemoryValues(uint32_t /*elements*/) const { return 0; }

  // Returns the codec for a tensor of this matrix shape, for codecs that treat tiles as
  // parts of one matrix. Returns null if this codec is for all tensors. Fails with
  // InvalidArgument, which says why, if the codec cannot encode this tensor.
  virtual absl::StatusOr<std::unique_ptr<Codec>> ForMatrix(uint64_t /*rows*/,
                                                           uint64_t /*columns*/) const {
    return nullptr;
  }

  // Returns null if the codec sends values rather than coefficients.
  virtual const CodecBasis* basis() const { return nullptr; }

  // Returns nothing if no GPU kernel encodes as this codec does.
  virtual std::optional<DeviceForm> device_form() const { return std::nullopt; }

  // Encodes `values` (at most one tile, all in the same tile) into `out`, which holds
  // MaxEncodedBytes(values.size()) bytes, and returns the number of bytes written.
  // `residual` is empty, or receives what the encoding lost: residual[i] = values[i] -
  // decoded[i] in FP32. It may be the memory of `values`. REQUIRES: finite values if
  // traits().finite_only.
  virtual size_t Encode(std::span<const float> values, std::span<float> residual,
                        const EncodeContext& context, MutableByteView out) const = 0;

  // accumulator[i] += weight * decode(bytes)[i]. `bytes` is untrusted. Fails with
  // InvalidArgument, and leaves the accumulator untouched, if its length or content
  // cannot be an encoding of accumulator.size() values.
  virtual absl::Status DecodeAdd(ByteView bytes, float weight,
                                 std::span<float> accumulator) const = 0;

  // Computes the same bits as DecodeAdd of all parts, one after another. Codecs that can
  // do so make fewer passes over the accumulator. Checks all parts before it adds
  // anything.
  virtual absl::Status DecodeAddAll(std::span<const WeightedBytes> parts,
                                    std::span<float> accumulator) const {
    for (const WeightedBytes& part : parts) {
      SYNCLINE_RETURN_IF_ERROR(
          Validate(part.bytes, static_cast<uint32_t>(accumulator.size())));
    }
    for (const WeightedBytes& part : parts) {
      SYNCLINE_RETURN_IF_ERROR(DecodeAdd(part.bytes, part.weight, accumulator));
    }
    return absl::OkStatus();
  }

  // out[i] = decode(bytes)[i]. Makes the same checks as DecodeAdd.
  virtual absl::Status Decode(ByteView bytes, std::span<float> out) const = 0;

  // Checks, without decoding, that `bytes` can be decoded to `elements` values.
  virtual absl::Status Validate(ByteView bytes, uint32_t elements) const = 0;

  // Returns how many values a valid encoding carries: fewer than `elements` if it is
  // sparse.
  virtual uint32_t Nonzeros(ByteView /*bytes*/, uint32_t elements) const {
    return elements;
  }
};

// The codecs that this build knows. main creates one and passes it down; it is not a
// global.
class CodecRegistry {
 public:
  // Returns a registry of all built-in codecs (builtin.cc).
  static CodecRegistry Builtin();

  void Register(std::unique_ptr<Codec> codec);

  // Fail with NotFound, which names the id or the name and lists the existing names.
  absl::StatusOr<const Codec*> Find(CodecId id) const;
  absl::StatusOr<const Codec*> FindByName(std::string_view name) const;
  std::vector<std::string_view> Names() const;

 private:
  std::vector<std::unique_ptr<Codec>> codecs_;
};

}  // namespace syncline
