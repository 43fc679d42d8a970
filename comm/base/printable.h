// Names that come from elsewhere: which are taken, and how to show any string safely.
//
//   SYNCLINE_RETURN_IF_ERROR(CheckName("a job's name", spec.name, kMaxJobNameBytes));
//   log.Warning(absl::StrCat("no job '", Printable(request.job()), "'"));
//
// A name with a line break or an escape sequence could forge a line of a log or of
// `syncline status`, or set a terminal's colours; one that reverses the direction of
// writing could look like another.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace syncline {

// Whether all of `text` is UTF-8 without control characters, line and paragraph
// separators, and marks that change the direction of writing.
bool IsPrintable(std::string_view text);

// `text` with \xNN for each byte that is not printable, and cut with "..." where it has
// more than `max_bytes`.
std::string Printable(std::string_view text, size_t max_bytes = 200);

// InvalidArgument unless `name` is printable and has 1 to `max_bytes` bytes. `what` begins
// the message: "a job's name".
absl::Status CheckName(std::string_view what, std::string_view name, size_t max_bytes);

}  // namespace syncline
