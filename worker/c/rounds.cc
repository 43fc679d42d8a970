// Implements the functions of syncline.h for rounds of local SGD.
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "worker/c/handles.h"
#include "worker/client/adaptive_rounds.h"

using syncline::AdaptiveRounds;
using syncline::c::Guarded;
using syncline::c::NullArgument;

struct syncline_rounds {
  AdaptiveRounds rounds;
};

namespace {

static_assert(SYNCLINE_ROUNDS_ELEMENTS == AdaptiveRounds::kElements);

absl::Status Check(const syncline_rounds* rounds, const float* values, size_t count) {
  if (rounds == nullptr) return NullArgument("rounds");
  if (values == nullptr) return NullArgument("values");
  if (count == AdaptiveRounds::kElements) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(count, " values: the tensor of the rounds has ",
                   AdaptiveRounds::kElements, " (SYNCLINE_ROUNDS_ELEMENTS)"));
}

}  // namespace

syncline_code syncline_rounds_new(const char* text, syncline_rounds** out) {
  return Guarded([&]() -> absl::Status {
    if (text == nullptr) return NullArgument("text");
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_ASSIGN_OR_RETURN(const syncline::RoundBounds bounds,
                              syncline::ParseAdaptiveRounds(text));
    *out = new syncline_rounds{AdaptiveRounds(bounds)};
    return absl::OkStatus();
  });
}

void syncline_rounds_free(syncline_rounds* rounds) { delete rounds; }

uint64_t syncline_rounds_steps(const syncline_rounds* rounds) {
  return rounds == nullptr ? 0 : rounds->rounds.steps();
}

uint64_t syncline_rounds_most(const syncline_rounds* rounds) {
  return rounds == nullptr ? 0 : rounds->rounds.bounds().most;
}

uint64_t syncline_rounds_least(const syncline_rounds* rounds) {
  return rounds == nullptr ? 0 : rounds->rounds.bounds().least;
}

syncline_code syncline_rounds_note(syncline_rounds* rounds, uint64_t steps,
                                   double seconds) {
  return Guarded([&]() -> absl::Status {
    if (rounds == nullptr) return NullArgument("rounds");
    return rounds->rounds.Note(steps, seconds);
  });
}

syncline_code syncline_rounds_write(const syncline_rounds* rounds, uint32_t rank,
                                    float* values, size_t count) {
  return Guarded([&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(Check(rounds, values, count));
    rounds->rounds.Write(rank, {values, count});
    return absl::OkStatus();
  });
}

syncline_code syncline_rounds_read(syncline_rounds* rounds, uint32_t rank,
                                   const float* values, size_t count) {
  return Guarded([&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(Check(rounds, values, count));
    rounds->rounds.Read(rank, {values, count});
    return absl::OkStatus();
  });
}
