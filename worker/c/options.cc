// Implements the options of syncline.h.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "comm/base/log.h"
#include "comm/base/status.h"
#include "worker/c/handles.h"
#include "worker/c/option_table.h"

using syncline::Logger;
using syncline::LogLevel;
using syncline::SessionOptions;
using syncline::c::Guarded;
using syncline::c::NullArgument;

static_assert(static_cast<int>(LogLevel::kDebug) == SYNCLINE_LOG_DEBUG);
static_assert(static_cast<int>(LogLevel::kError) == SYNCLINE_LOG_ERROR);

namespace {

// The default log. A program then says what it waits for, even if it has asked for no
// log.
Logger ToStandardError() {
  const auto print = [](LogLevel, const std::string& line) {
    std::fprintf(stderr, "syncline: %s\n", line.c_str());
  };
  return Logger::Create({.level = LogLevel::kInfo, .function = print});
}

}  // namespace

syncline_code syncline_options_new(syncline_options** out) {
  return Guarded([&] {
    if (out == nullptr) return NullArgument("out");
    *out = new syncline_options{.values = {.log = ToStandardError()}, .given_out = {}};
    return absl::OkStatus();
  });
}

syncline_code syncline_options_from_env(syncline_options** out) {
  return Guarded([&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_ASSIGN_OR_RETURN(SessionOptions values, SessionOptions::FromEnv());
    values.log = ToStandardError();
    *out = new syncline_options{.values = std::move(values), .given_out = {}};
    return absl::OkStatus();
  });
}

void syncline_options_free(syncline_options* options) { delete options; }

syncline_code syncline_options_set(syncline_options* options, const char* key,
                                   const char* value) {
  return Guarded([&] {
    if (options == nullptr) return NullArgument("options");
    if (key == nullptr) return NullArgument("key");
    if (value == nullptr) return NullArgument("value");
    return syncline::c::SetOption(options->values, key, value);
  });
}

const char* syncline_options_get(syncline_options* options, const char* key) {
  const char* found = nullptr;
  Guarded([&] {
    if (options == nullptr) return NullArgument("options");
    if (key == nullptr) return NullArgument("key");
    const auto value = syncline::c::GetOption(options->values, key);
    if (!value) return absl::OkStatus();
    options->given_out = *value;
    found = options->given_out.c_str();
    return absl::OkStatus();
  });
  return found;
}

void syncline_options_set_log(syncline_options* options, syncline_log_function log,
                              void* context) {
  Guarded([&] {
    if (options == nullptr) return NullArgument("options");
    if (log == nullptr) {
      options->values.log = {};
      return absl::OkStatus();
    }
    const auto call = [log, context](LogLevel level, const std::string& line) {
      log(context, static_cast<syncline_log_level>(level), line.c_str());
    };
    options->values.log = Logger::Create({.level = LogLevel::kDebug, .function = call});
    return absl::OkStatus();
  });
}
