// Sparse tiles: a selector chooses values, an index coder writes their positions, and any
// dense codec encodes the values. What is not sent stays in the residual.
//
//   SYNCLINE_ASSIGN_OR_RETURN(
//       const std::unique_ptr<Codec> codec,
//       MakeSparseCodec({.selector = {.kind = SelectorKind::kTopK, .ratio = 0.01},
//                        .values = MakeIntegerCodec({.bits = 8})}));
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
// Decoders read all of this from the bytes; their own selector does not matter.
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
  // Codecs of values that are also accepted when decoding.
  std::vector<std::shared_ptr<const Codec>> also_decoded = {};
};

// Fails with InvalidArgument if CheckSelector does, or if `values` is missing or sparse
// itself.
absl::StatusOr<std::unique_ptr<Codec>> MakeSparseCodec(SparseOptions options);

// Returns the encoding with positions in a form that GPUs read (kU16 or kEvery): `bytes`
// itself, or a copy in `memory`. Returns nothing if the positions or values have a form
// that GPUs cannot read. REQUIRES: a valid encoding of `elements` values.
std::optional<ByteView> WithPlainPositions(ByteView bytes, uint32_t elements,
                                           std::vector<std::byte>& memory);

// Rewrites an encoding from a GPU with the position coder that Encode would have chosen.
// Returns the number of bytes written to `out`, which has room for MaxEncodedBytes of the
// codec. Fails with InvalidArgument if `bytes` is not an encoding or the result does not
// fit.
absl::StatusOr<size_t> WithSmallestPositions(ByteView bytes, uint32_t elements,
                                             MutableByteView out);

}  // namespace syncline
