// Early return for absl::Status, the way errors travel in Syncline.
//
// An error says what happened, where (peer, rank, tensor, step) and what to do about it.
// Bugs are not errors: they stop the process through CHECK (comm/base/check.h).
//
//   absl::Status Load(absl::string_view path) {
//     SYNCLINE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
//     SYNCLINE_RETURN_IF_ERROR(Parse(text));
//     return absl::OkStatus();
//   }
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define SYNCLINE_RETURN_IF_ERROR(expression)                                  \
  do {                                                                        \
    if (absl::Status syncline_status = (expression); !syncline_status.ok()) { \
      return syncline_status;                                                 \
    }                                                                         \
  } while (false)

#define SYNCLINE_CONCAT_INNER(a, b) a##b
#define SYNCLINE_CONCAT(a, b) SYNCLINE_CONCAT_INNER(a, b)

#define SYNCLINE_ASSIGN_OR_RETURN(declaration, expression)                             \
  SYNCLINE_ASSIGN_OR_RETURN_IMPL(SYNCLINE_CONCAT(syncline_or_, __LINE__), declaration, \
                                 expression)

#define SYNCLINE_ASSIGN_OR_RETURN_IMPL(name, declaration, expression) \
  auto name = (expression);                                           \
  if (!name.ok()) return std::move(name).status();                    \
  declaration = *std::move(name)
