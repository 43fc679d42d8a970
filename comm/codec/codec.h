// A Codec turns one tile of FP32 values into bytes and adds decoded bytes into an
// accumulator.
//
// The two functions are the whole contract, because both ends of the data path need
// nothing else: workers encode gradients tile by tile, servers add the contributions of
// all workers into one accumulator that stays in cache, and the published view goes back
// the same way.
//
// Thread safety: implementations are stateless and const; any number of threads may share
// one. Implementations: fp32/, bf16/, fp16/. A new one costs a folder, a test that
// instantiates the contract suite (codec_contract.h), and one line in builtin.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/base/status.h"

namespace syncline {

// Ids are part of the wire format (docs/wire_format.md): never reused, never renumbered.
enum class CodecId : uint16_t { kFp32 = 1, kBf16 = 2, kFp16 = 3, kBf16Stochastic = 4 };

// Where and when values are encoded: what randomised codecs hash for their random bits
// (comm/base/random.h). Others ignore it.
struct EncodeContext {
  uint64_t seed = 0;  // differs between those whose errors should be independent
  uint64_t step = 0;
  uint32_t tensor = 0;
  uint64_t first_element = 0;  // position of values[0] in the tensor
};

// An encoding and its weight in a sum.
struct WeightedBytes {
  ByteView bytes = {};
  float weight = 1;
};

class Codec {
 public:
  virtual ~Codec() = default;

  virtual CodecId id() const = 0;
  // The name users write in flags and job settings: "fp32", "bf16".
  virtual std::string_view name() const = 0;

  // Upper bound of the encoded size of `elements` values; dense codecs need exactly this.
  virtual size_t MaxEncodedBytes(uint32_t elements) const = 0;

  // Encodes `values` (at most one tile, all in one tile) into `out`, which holds
  // MaxEncodedBytes(values.size()). On return `values` holds what the encoding lost (the
  // residual) for codecs with error feedback; dense codecs leave it alone. Returns the
  // number of bytes written.
  virtual size_t Encode(std::span<float> values, const EncodeContext& context,
                        MutableByteView out) const = 0;

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
