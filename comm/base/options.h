// Named numeric options with a table of allowed values: the settings of optimizers,
// schedules, loss scaling and gradient transforms.
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

// Checks values against a table. InvalidArgument names `owner` ("optimizer 'adamw'"), the
// option, its value and the allowed range; for an unknown option, the nearest name. NaN
// is never valid.
absl::Status ValidateOptions(std::string_view owner, std::span<const OptionSpec> specs,
                             const OptionValues& values);

// Returns the value, or the default when it is not set. REQUIRES: `name` is in `specs`.
double OptionOr(std::span<const OptionSpec> specs, const OptionValues& values,
                std::string_view name);

// Parses "name=number" strings from flags. InvalidArgument names the wrong one.
absl::StatusOr<OptionValues> ParseOptions(std::span<const std::string> assignments);

// Convert between a choice and one string: "adamw:lr=0.001,beta2=0.95", or the name
// alone. Numbers are formatted so that they are read back exactly.
absl::StatusOr<NamedOptions> ParseNamedOptions(std::string_view choice);
std::string FormatNamedOptions(const NamedOptions& choice);
// The same for the part after the colon; empty: no options.
absl::StatusOr<OptionValues> ParseOptionList(std::string_view list);
std::string FormatOptionList(const OptionValues& values);

// Returns `values` without those equal to their defaults, so that equal settings become
// equal maps.
OptionValues WithoutDefaults(std::span<const OptionSpec> specs,
                             const OptionValues& values);

// Returns `values`, with those of `changes` replacing equal names.
OptionValues Merge(const OptionValues& values, const OptionValues& changes);

}  // namespace syncline
