// Named numbers with a table of what is allowed: the settings of optimizers, schedules,
// loss scaling and gradient transforms.
//
//   constexpr OptionSpec kOptions[] = {
//       {.name = "lr", .standard = 1e-3, .least = 0, .most = 1e6,
//        .meaning = "learning rate"},
//       {.name = "beta1", .standard = 0.9, .most = 1, .bound = Bound::kExcluded}};
//   SYNCLINE_RETURN_IF_ERROR(ValidateOptions("optimizer 'adamw'", kOptions, values));
//   const double lr = OptionOr(kOptions, values, "lr");
//
// One table serves validation, defaults, flags and documentation, and job settings travel
// as names and numbers: a new option changes no message.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncline {

using OptionValues = std::map<std::string, double, std::less<>>;

// A choice by name ("adamw", "cosine") and the options that differ from its defaults.
struct NamedOptions {
  std::string name = {};
  OptionValues values = {};

  bool operator==(const NamedOptions&) const = default;
};

enum class OptionKind { kReal, kWhole, kFlag };  // a flag is 0 or 1
enum class Bound { kIncluded, kExcluded };       // whether `most` itself is allowed

struct OptionSpec {
  std::string_view name = {};
  double standard = 0;  // the default
  double least = 0;
  double most = 1;
  Bound bound = Bound::kIncluded;
  OptionKind kind = OptionKind::kReal;
  std::string_view meaning = {};
};

// InvalidArgument names `owner` ("optimizer 'adamw'"), the option, its value and the
// allowed range; for an unknown option the nearest name. Never OK with a NaN.
absl::Status ValidateOptions(std::string_view owner, std::span<const OptionSpec> specs,
                             const OptionValues& values);

// The value, or the default when it is not set. REQUIRES: `name` is in `specs`.
double OptionOr(std::span<const OptionSpec> specs, const OptionValues& values,
                std::string_view name);

// From "name=number" strings, as flags have them. InvalidArgument names the one that is
// not.
absl::StatusOr<OptionValues> ParseOptions(std::span<const std::string> assignments);

// One string for a choice: "adamw:lr=0.001,beta2=0.95", or its name alone. Numbers are
// written so that they are read back as they were.
absl::StatusOr<NamedOptions> ParseNamedOptions(std::string_view choice);
std::string FormatNamedOptions(const NamedOptions& choice);
// The part after the colon; empty for none.
absl::StatusOr<OptionValues> ParseOptionList(std::string_view list);
std::string FormatOptionList(const OptionValues& values);

// `values` without those that are the defaults anyway: equal settings become equal maps.
OptionValues WithoutDefaults(std::span<const OptionSpec> specs,
                             const OptionValues& values);

// `values` with those of `changes` in place of equal names.
OptionValues Merge(const OptionValues& values, const OptionValues& changes);

}  // namespace syncline
