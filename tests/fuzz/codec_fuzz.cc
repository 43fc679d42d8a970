// Fuzzes one encoded tile, as DecodeAdd gets it from a frame with a valid header.
//
//   offset  bytes
//   0       1      index in Transfers()
//   1       3      elements, modulo a tile and one
//   4       rest   the encoding
#include "comm/base/limits.h"
#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (uint32_t which = 0; which < Transfers().size(); ++which) {
    const Codec& codec = *Transfers()[which].codec;
    for (const uint32_t elements : {0u, 1u, 65u, 300u, 5000u}) {
      Bytes encoded(codec.MaxEncodedBytes(elements));
      encoded.resize(codec.Encode(SomeValues(elements, which), {}, {}, encoded));
      Bytes& seed = seeds.emplace_back();
      Append(seed, which, 1);
      Append(seed, elements, 3);
      Append(seed, encoded);
    }
  }
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  const std::span<const Transfer> transfers = fuzz::Transfers();
  const Transfer& transfer = transfers[input.Take(1) % transfers.size()];
  const uint32_t elements = input.Take(3) % (kTileElements + 1);
  fuzz::CheckCodec(*transfer.codec, input.rest(), elements);
  return 0;
}
