// Sparse tiles: a selector chooses values, an index coder writes where they are, and any
// dense codec what they are. What is not sent is the residual.
//
//   SYNCLINE_ASSIGN_OR_RETURN(
//       const std::unique_ptr<Codec> codec,
//       MakeSparseCodec({.selector = {.kind = SelectorKind::kTopK, .ratio = 0.01},
//                        .values = MakeInt8()}));
//
// Little-endian layout of an encoding:
//
//   offset  bytes
//   0       4        number of values sent
//   4       2        CodecId of the values
//   6       1        IndexCoder
//   7       1        Rice parameter; 0 for other coders
//   8       4        bytes of the indices
//   12      indices  index_coder.h
//           rest     the values, encoded as a tile of their own
//
// Decoders take all this from the bytes, whatever their own selector is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/codec/codec.h"
#include "comm/codec/sparse/selector.h"

namespace syncline {

struct SparseOptions {
  std::string name = "sparse";  // Codec::name
  SelectorSpec selector = {};
  std::shared_ptr<const Codec> values = nullptr;  // dense
  // Encodings with these values are decoded as well.
  std::vector<std::shared_ptr<const Codec>> also_decoded = {};
};

// InvalidArgument: CheckSelector, or values that are missing or sparse themselves.
absl::StatusOr<std::unique_ptr<Codec>> MakeSparseCodec(SparseOptions options);

// An encoding of `elements` values whose positions are written as GPUs read them, kU16 or
// kEvery: `bytes` itself, or a copy in `memory`. Nothing: these positions, or values, are
// none of those that GPUs read. REQUIRES: a valid encoding.
std::optional<ByteView> WithPlainPositions(ByteView bytes, uint32_t elements,
                                           std::vector<std::byte>& memory);

// What a GPU wrote, with the coder of the positions that Encode would have chosen: bytes
// written to `out`, which has room for MaxEncodedBytes of the codec. InvalidArgument: it
// is no encoding, or has no room there.
absl::StatusOr<size_t> WithSmallestPositions(ByteView bytes, uint32_t elements,
                                             MutableByteView out);

}  // namespace syncline
