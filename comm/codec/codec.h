// A Codec turns one tile of FP32 values into bytes and adds decoded bytes into an
// accumulator.
//
// Encode and DecodeAdd are the contract, because both ends of the data path need nothing
// else: workers encode gradients tile by tile, servers add the contributions of all
// workers into one accumulator that stays in cache, and the published view goes back the
// same way. What an encoding loses, the residual, comes out of the same pass.
//
// Codecs are composed (README.md): a quantizer encodes every value, a selector few of
// them with any quantizer for the values, and a memory (comm/compression/memory) decides
// what the values are. Users name the whole by a string (comm/compression/transfer.h).
//
// Thread safety: implementations are stateless and const; any number of threads may share
// one. A new one costs a folder, a test that instantiates the contract suites
// (codec_contract.h for exact ones, lossy_codec_contract.h for all), and one line in
// builtin.cc.
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

// Ids are part of the wire format (docs/wire_format.md): never reused, never renumbered.
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
};

// What a codec promises, for tiles of finite values.
struct CodecTraits {
  // E[decoded] = value.
  bool unbiased = false;
  // E|decoded - value|^2 <= variance * |value|^2, of codecs that round at random.
  double variance = 0;
  // Of others, |decoded - value|^2 <= (1 - contraction) * |value|^2 for any tile, so that
  // error feedback converges (Karimireddy et al. 2019, arXiv 1901.09847).
  double contraction = 0;
  // The largest magnitude that decodes to something finite, as far as `values` alone
  // decide that. What is above goes another way (comm/compression/memory), like NaN and infinity.
  float largest = std::numeric_limits<float>::max();
  // NaN and infinity cannot be encoded; tiles that hold one go another way (comm/compression/memory).
  bool finite_only = false;
  // An encoding may be cut at multiples of so many elements of a tile (dense.h); decoders
  // work in strips of it. kTileElements: not at all.
  uint32_t strip = 1;
};

// Where and when values are encoded: what randomised codecs hash for their random bits
// (comm/base/random.h). Others ignore it.
struct EncodeContext {
  uint64_t seed = 0;  // differs between those whose errors should be independent
  uint64_t step = 0;
  uint32_t tensor = 0;
  uint64_t first_element = 0;  // position of values[0] in the tensor
  // What the caller keeps for this tile from step to step: Codec::MemoryValues of them,
  // zero at first. Empty: nothing is kept.
  std::span<float> memory = {};
  // The smallest magnitude that a selector over the whole tensor sends; 0: not known, and
  // the selector looks at its tile alone.
  float threshold = 0;
};

// An encoding and its weight in a sum.
struct WeightedBytes {
  ByteView bytes = {};
  float weight = 1;
};

// What the kernels of comm/codec/cuda are told so that a GPU encodes to the same bytes.
struct DeviceForm {
  uint32_t block_log2 = 0;     // kSign, kInt8: of the elements that share a scale
  bool is_stochastic = false;  // kInt8: rounds by chance
  double ratio = 0;            // kSparse: the share of a tile's elements that is sent
  CodecId values = CodecId::kFp32;  // kSparse
};

class Codec {
 public:
  virtual ~Codec() = default;

  virtual CodecId id() const = 0;
  // What users write in flags and job settings (comm/compression/transfer.h): "bf16",
  // "topk:ratio=0.01".
  virtual std::string_view name() const = 0;

  virtual CodecTraits traits() const = 0;

  // Upper bound of the encoded size of `elements` values; codecs whose strip is 1 need
  // exactly this.
  virtual size_t MaxEncodedBytes(uint32_t elements) const = 0;

  // How many values a codec would like to keep of a tile from step to step
  // (EncodeContext::memory): a threshold, a basis.
  virtual size_t MemoryValues(uint32_t /*elements*/) const { return 0; }

  // The codec of a tensor with this matrix, for codecs that see tiles as parts of one;
  // null: this codec is for all tensors. InvalidArgument says why it is not for this one.
  virtual absl::StatusOr<std::unique_ptr<Codec>> ForMatrix(uint64_t /*rows*/,
                                                           uint64_t /*columns*/) const {
    return nullptr;
  }

  // Nothing: no kernel encodes as this codec does.
  virtual std::optional<DeviceForm> device_form() const { return std::nullopt; }

  // Encodes `values` (at most one tile, all in one tile) into `out`, which holds
  // MaxEncodedBytes(values.size()), and returns the number of bytes written. `residual`
  // is empty, or takes what the encoding lost: residual[i] = values[i] - decoded[i] in
  // FP32. It may be the memory of `values`. REQUIRES: finite values if
  // traits().finite_only.
  virtual size_t Encode(std::span<const float> values, std::span<float> residual,
                        const EncodeContext& context, MutableByteView out) const = 0;

  // accumulator[i] += weight * decode(bytes)[i]. `bytes` is believed only as far as it
  // was checked: InvalidArgument when its length or content cannot be an encoding of
  // accumulator.size() values, and then the accumulator is untouched.
  virtual absl::Status DecodeAdd(ByteView bytes, float weight,
                                 std::span<float> accumulator) const = 0;

  // The same bits as DecodeAdd of all parts, one after another, in fewer passes over the
  // accumulator where a codec can. Same checks, of all parts before anything is added.
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

  // out[i] = decode(bytes)[i]; same checks.
  virtual absl::Status Decode(ByteView bytes, std::span<float> out) const = 0;

  // Checks that `bytes` can be decoded to `elements` values, without decoding.
  virtual absl::Status Validate(ByteView bytes, uint32_t elements) const = 0;

  // How many values a valid encoding carries: fewer than `elements` if it is sparse.
  virtual uint32_t Nonzeros(ByteView /*bytes*/, uint32_t elements) const {
    return elements;
  }
};

// The codecs that this build knows. A value made in main and handed down, never a global.
class CodecRegistry {
 public:
  // All built-in codecs (builtin.cc).
  static CodecRegistry Builtin();

  void Register(std::unique_ptr<Codec> codec);

  // NotFound names the id or the name, and the names that exist.
  absl::StatusOr<const Codec*> Find(CodecId id) const;
  absl::StatusOr<const Codec*> FindByName(std::string_view name) const;
  std::vector<std::string_view> Names() const;

 private:
  std::vector<std::unique_ptr<Codec>> codecs_;
};

}  // namespace syncline
