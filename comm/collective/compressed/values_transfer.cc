#include "comm/collective/compressed/values_transfer.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/status.h"

namespace syncline::collective {

absl::StatusOr<Transfer> ValuesTransfer(std::string_view codec, std::string_view who) {
  SYNCLINE_ASSIGN_OR_RETURN(Transfer transfer, ParseTransfer(codec));
  const auto refused = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec '", std::string(codec), "' ", why, "; ", std::string(who),
                     " takes dense codecs, quantizers and selectors"));
  };
  if (transfer.chooses()) return refused("chooses by what servers measure");
  if (transfer.mean_of_senders) return refused("is averaged over senders by servers");
  if (transfer.votes) return refused("is decided by a vote of servers");
  const CompressWhat standard;
  if (transfer.what.vectors != standard.vectors ||
      transfer.what.min_elements != standard.min_elements) {
    return refused("chooses among tensors (vectors, min_elements)");
  }
  transfer.what = {
      .min_elements = 0, .vectors = true, .dense_steps = transfer.what.dense_steps};
  const auto of_values = transfer.ForTensor({.elements = 1, .dimensions = 1});
  if (!of_values.ok()) return refused("needs a matrix");
  return *of_values;
}

Transfer DenseOf(const Transfer& transfer) {
  return {.codec = transfer.compresses() ? transfer.dense : transfer.codec};
}

}  // namespace syncline::collective
