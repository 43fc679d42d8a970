// What the fuzzers of this folder share. Each *_fuzz.cc defines the entry point of
// libFuzzer and the inputs to start from; main.cc, or libFuzzer, does the rest.
//
// An input is a few bytes that choose what is decoded, and the bytes to decode. It must
// not crash, and must keep what the checks below demand; SYNCLINE_CHECK aborts otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/codec.h"
#include "comm/compression/transfer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace syncline::fuzz {

using Bytes = std::vector<std::byte>;

// Defined by each fuzzer: real encodings, the same in each run.
std::vector<Bytes> Seeds();

// ---- Parts of inputs ----

// Takes little-endian numbers off the front; zeros when nothing is left.
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

// ---- What is decoded ----

// Texts of ParseTransfer: all presets, and selectors with each kind of values.
std::vector<std::string> TransferTexts();

// The transfers of these texts. Made once.
std::span<const Transfer> Transfers();

// Values as gradients have them: of both signs, many small, a few large, some zero.
std::vector<float> SomeValues(uint32_t count, uint32_t seed);

// Decodes `bytes` as `elements` values in every way that `codec` has. Accepted ones give
// the same bits each time and in each way; refused ones leave the output untouched.
// Returns whether they were accepted.
bool CheckCodec(const Codec& codec, ByteView bytes, uint32_t elements);

}  // namespace syncline::fuzz
