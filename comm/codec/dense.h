// Dense codecs: every element takes the same number of bytes, so only the length needs
// checking.
//
// A dense encoding can therefore be cut: elements [first, first + n) of an encoded tile
// are the bytes [first * k, (first + n) * k) with k = MaxEncodedBytes(1), and these bytes
// are a valid encoding of n elements. Servers use this to work strip by strip.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/buffer.h"

namespace syncline {

inline absl::Status CheckDenseLength(ByteView bytes, size_t elements,
                                     size_t bytes_per_element) {
  if (bytes.size() == elements * bytes_per_element) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "encoded tile has ", bytes.size(), " bytes, but ", elements, " elements of ",
      bytes_per_element, " bytes need ", elements * bytes_per_element));
}

}  // namespace syncline
