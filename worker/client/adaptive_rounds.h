// How many local steps this worker takes in a round of local SGD if the workers differ in
// speed: as many as the fastest worker's speed and its own allow, so that all rounds take
// about as long. These are the dynamic local updates of Liu et al. 2024 (arXiv
// 2401.09135, DyLU), H_w = H v_w / v_max, rounded to the nearest number and bounded.
//
//   AdaptiveRounds rounds(*ParseAdaptiveRounds("adaptive:100"));
//   // Declare a tensor of kElements zeros, with the option "mean=1".
//   for (;;) {
//     ... rounds.steps() steps ...
//     SYNCLINE_RETURN_IF_ERROR(rounds.Note(steps, seconds));
//     rounds.Write(rank, pushed);  // push it with the samples of the round
//     ... push the weights; wait for all tensors ...
//     rounds.Read(rank, tensor);
//   }
//
// Each worker writes the time of a step and a one to its slot of the tensor, and the
// servers take the mean, weighted by samples. The quotient of the two means is the time,
// whatever the weight. A worker that did not contribute has a one nowhere, so it no
// longer counts. All workers read the same bits, so they agree about everybody's speed.
//
// Thread safety: none. The class is pure: times are arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncline {

// The number of steps of a round.
struct RoundBounds {
  uint64_t most = 0;   // of the fastest worker
  uint64_t least = 1;  // of any worker, however slow

  bool operator==(const RoundBounds&) const = default;
};

// Parses "adaptive:most=100,least=10", or "adaptive:100" for short. InvalidArgument names
// the part that is malformed, and the allowed range.
absl::StatusOr<RoundBounds> ParseAdaptiveRounds(std::string_view text);

class AdaptiveRounds {
 public:
  // Ranks with the same rank % kSlots share a slot, which then holds their mean.
  static constexpr size_t kSlots = 256;
  static constexpr size_t kElements = 2 * kSlots;

  explicit AdaptiveRounds(const RoundBounds& bounds) : bounds_(bounds) {}

  const RoundBounds& bounds() const { return bounds_; }

  // Returns the number of steps of the round that begins. A worker that was not measured
  // yet, or has not read of any worker, takes a quarter of `most`, at least `least`.
  uint64_t steps() const;

  // Notes that `steps` steps took this worker `seconds`, without waiting for others. The
  // time of a step is the mean of the last measurement and of the time before it, so that
  // one hiccup does not change much. Fails with InvalidArgument unless both are above 0.
  absl::Status Note(uint64_t steps, double seconds);

  // Writes what this worker pushes. REQUIRES: pushed.size() == kElements.
  void Write(uint32_t rank, std::span<float> pushed) const;
  // Reads what the servers made of it. Slots that are not numbers above 0 do not count.
  // REQUIRES: mean.size() == kElements.
  void Read(uint32_t rank, std::span<const float> mean);

 private:
  const RoundBounds bounds_;
  double step_seconds_ = 0;  // 0: not measured yet
  // As read last, of the workers that contributed. Nothing: none did.
  std::optional<double> fastest_ = std::nullopt;
  std::optional<double> own_ = std::nullopt;
};

}  // namespace syncline
