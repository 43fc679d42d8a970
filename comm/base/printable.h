// Checks names that come from outside, and formats any string safely.
//
//   SYNCLINE_RETURN_IF_ERROR(CheckName("a job's name", spec.name, kMaxJobNameBytes));
//   log.Warning(absl::StrCat("no job '", Printable(request.job()), "'"));
//
// A name with a line break or an escape sequence could forge a line of a log or of
// `syncline status`, or set a terminal's colours. A name that reverses the direction of
// writing could look like another name.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace syncline {

// Returns true if all of `text` is UTF-8 without control characters, line and paragraph
// separators, and marks that change the direction of writing.
bool IsPrintable(std::string_view text);

// Returns `text` with \xNN for each byte that is not printable, cut off with "..." if it
// has more than `max_bytes`.
std::string Printable(std::string_view text, size_t max_bytes = 200);

// Fails with InvalidArgument unless `name` is printable and has 1 to `max_bytes` bytes.
// `what` begins the message: "a job's name".
absl::Status CheckName(std::string_view what, std::string_view name, size_t max_bytes);

}  // namespace syncline
