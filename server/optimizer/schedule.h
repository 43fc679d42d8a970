// Learning-rate schedules: a factor of the optimizer's learning rate, as a pure function
// of the number of the update. All shards have the settings, from the job's declaration
// and from epochs that change them. Each computes the factor itself, so no step needs a
// message for it.
//
// s counts updates from 0. After a warm-up of w updates, t = s - w goes from 0 to T =
// total_steps - w. From then on the factor stays constant.
//   constant      1
//   linear        1 to min_factor, straight
//   cosine        min + (1 - min) (1 + cos(pi t / T)) / 2 (Loshchilov and Hutter, 2016,
//                 arXiv 1608.03983); with `period` it restarts: the first one takes
//                 `period` updates, each next one `period_factor` times as many
//   inverse_sqrt  1 / sqrt((t + c) / c), where c is timescale, or w if that is 0, or 10000
//                 if both are (Vaswani et al., 2017, in the form of transformers)
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
// Returns the options of a schedule, including those that all schedules have. REQUIRES:
// `name` is one of ScheduleNames().
std::vector<OptionSpec> ScheduleOptionsOf(std::string_view name);

// Fails with InvalidArgument, which suggests the nearest schedule or option, or names the
// allowed range. It also fails if total_steps is missing, or not longer than the warm-up.
absl::Status ValidateSchedule(const NamedOptions& schedule);

// Returns the factor of the learning rate. REQUIRES: a valid schedule.
double ScheduleFactor(const NamedOptions& schedule, uint64_t update);
// Returns (samples / base_batch)^batch_exponent, or 1 without base_batch. Exponent 1 is
// linear scaling (Goyal et al., 2017, arXiv 1706.02677), 0.5 is square-root scaling.
// REQUIRES: a valid schedule.
double BatchScale(const NamedOptions& schedule, double samples);

}  // namespace syncline
