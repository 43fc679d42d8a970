// Functions that the fuzzers of this folder share. Each *_fuzz.cc defines the entry point
// of libFuzzer and the inputs to start from; main.cc or libFuzzer does the rest.
//
// An input consists of a few bytes that choose the decoder, and the bytes to decode. It
// must not crash, and must pass the checks below; otherwise SYNCLINE_CHECK aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/codec.h"
#include "comm/compression/transfer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace syncline::fuzz {

using Bytes = std::vector<std::byte>;

// Returns real encodings, the same in each run. Each fuzzer defines it.
std::vector<Bytes> Seeds();

// ---- Parts of inputs ----

// Takes little-endian numbers from the front. Returns zeros after the end.
class Reader {
 public:
  explicit Reader(ByteView bytes) : rest_(bytes) {}
  uint32_t Take(size_t bytes);
  ByteView rest() const { return rest_; }

 private:
  ByteView rest_;
};

void Append(Bytes& input, uint32_t value, size_t bytes);
void Append(Bytes& input, ByteView bytes);
// Returns an input whose first byte chooses one of two decoders of strings.
Bytes Seed(bool second_decoder, std::string_view text);

// ---- Codecs ----

// Returns texts of ParseTransfer: all presets, and selectors with each kind of values.
std::vector<std::string> TransferTexts();

// Returns the transfers of these texts, which are made once.
std::span<const Transfer> Transfers();

// Returns values like those of gradients: both signs, many small, a few large, some zero.
std::vector<float> SomeValues(uint32_t count, uint32_t seed);

// Decodes `bytes` as `elements` values with all functions of `codec`. Checks that
// accepted bytes give the same bits each time and by each function, and that refused ones
// leave the output unchanged. Returns whether they were accepted.
bool CheckCodec(const Codec& codec, ByteView bytes, uint32_t elements);

}  // namespace syncline::fuzz
