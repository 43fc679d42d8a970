// Learning-rate schedules: a factor of the optimizer's learning rate, as a pure function
// of the update's number. The coordinator hands the settings to all shards with the job,
// and changes of them with an epoch; each value is then computed where it is needed, so
// that no message has to travel for a step.
//
// s counts updates from 0. After a warm-up of w updates, t = s - w runs to T =
// total_steps
// - w; then the factor stays where it is.
//   constant      1
//   linear        1 to min_factor, straight
//   cosine        min + (1 - min) (1 + cos(pi t / T)) / 2 (Loshchilov and Hutter, 2016,
//                 arXiv 1608.03983); with `period` it restarts: the first one takes
//                 `period` updates, each next one `period_factor` times as many
//   inverse_sqrt  1 / sqrt((t + c) / c), c = timescale, else w, else 10000 (Vaswani et
//                 al., 2017, in the form of transformers)
//   polynomial    min + (1 - min) (1 - t / T)^power
//   one_cycle     Smith, 2017, arXiv 1708.07120, as torch's OneCycleLR: the learning rate
//                 is its max_lr
//   wsd           warm-up, stable at 1, decay to min_factor over the last decay_steps (Hu
//                 et al., 2024, arXiv 2404.06395); decay_power 1 is a straight line
//   step          gamma^floor(t / step_size)
//   exponential   gamma^t
//   range_test    first_factor to last_factor, exponentially (Smith, 2015, arXiv
//                 1506.01186)
// The warm-up is a straight line from warmup_start_factor to 1 (torch's LinearLR; the
// default 0 is that of transformers: then the first update has no effect on the weights).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "comm/base/options.h"

namespace syncline {

std::span<const std::string_view> ScheduleNames();
// The options of a schedule, those that all have included. REQUIRES: a name of
// ScheduleNames().
std::vector<OptionSpec> ScheduleOptionsOf(std::string_view name);

// InvalidArgument names the nearest schedule or option, a value's range, or says that
// total_steps is missing or not longer than the warm-up.
absl::Status ValidateSchedule(const NamedOptions& schedule);

// REQUIRES: a valid schedule, for both.
double ScheduleFactor(const NamedOptions& schedule, uint64_t update);
// (samples / base_batch)^batch_exponent: 1 scales linearly (Goyal et al., 2017, arXiv
// 1706.02677), 0.5 with the square root. 1 without base_batch.
double BatchScale(const NamedOptions& schedule, double samples);

}  // namespace syncline
