// Chooses a Transfer for values that ranks exchange, from the string that users write. It
// refuses codecs for which servers would have to decide, or that need a matrix.
//
//   SYNCLINE_ASSIGN_OR_RETURN(Transfer transfer,
//                             ValuesTransfer("int8", "an all-reduce"));
//
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "comm/compression/transfer.h"

namespace syncline::collective {

// Returns the transfer. Vectors and small tensors are compressed as well. Fails with
// InvalidArgument if the codec does not exist, needs more than the values (a matrix, a
// vote, a choice from step to step), or has options that choose among tensors
// (min_elements, vectors). The message says that `who` takes other codecs.
absl::StatusOr<Transfer> ValuesTransfer(std::string_view codec, std::string_view who);

// Returns the dense transfer for steps that are not compressed yet (dense_steps).
Transfer DenseOf(const Transfer& transfer);

}  // namespace syncline::collective
